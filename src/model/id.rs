//! Typed ids. An untyped UUID never crosses a function.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! typed_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id, sortable by the time it was made (UUID version 7).
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }

            /// Wraps a UUID that was read back from a store or a domain description.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The UUID itself.
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    };
}

typed_id!(
    /// A virtual machine, for life: it is also the UUID of the libvirt domain.
    VmId
);
typed_id!(
    /// A host that runs virtual machines.
    HostId
);
typed_id!(
    /// The holding of a GPU partition.
    LeaseId
);
typed_id!(
    /// A person or a service account.
    UserId
);
typed_id!(
    /// A team.
    TeamId
);
typed_id!(
    /// An API token; its id is no secret.
    TokenId
);
typed_id!(
    /// One accepted request for change; also the id of its audit row.
    OpId
);
typed_id!(
    /// A version of an image in the catalogue.
    ImageId
);
typed_id!(
    /// A registered SSH public key.
    KeyId
);
