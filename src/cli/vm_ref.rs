//! How a machine is named on the command line: `dev`, `dev.alice` or its id.

use std::fmt;
use std::str::FromStr;

use crate::api::client::segment;
use crate::model::id::VmId;
use crate::model::name::{UserName, VmName};

/// A machine as typed; well-formed because it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRef(String);

impl VmRef {
    /// A machine by the id that the manager gave.
    pub fn by_id(id: &str) -> Self {
        Self(id.to_owned())
    }

    /// The API's path of it.
    pub fn path(&self) -> String {
        format!("/v1/vms/{}", segment(&self.0))
    }
}

impl FromStr for VmRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.parse::<VmId>().is_ok() {
            return Ok(Self(text.to_owned()));
        }
        let (name, owner) = text.split_once('.').map_or((text, None), |(name, owner)| (name, Some(owner)));
        name.parse::<VmName>().map_err(|e| e.to_string())?;
        if let Some(owner) = owner {
            owner.parse::<UserName>().map_err(|e| e.to_string())?;
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for VmRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_names_with_an_owner_and_ids_are_taken() {
        for good in ["dev", "dev.alice", "0192f0c1-2b3c-7d4e-8f50-111213141516"] {
            assert_eq!(good.parse::<VmRef>().unwrap().path(), format!("/v1/vms/{good}"));
        }
        for bad in ["", "../x", "a b", "dev.", ".alice", "dev.al.ice", "Dev", "<x>", "a/b"] {
            assert!(bad.parse::<VmRef>().is_err(), "{bad:?}");
        }
    }
}
