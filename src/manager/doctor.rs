//! What the doctor looks at.

use std::collections::BTreeMap;

use super::Manager;
use crate::auth::policy::Permit;
use crate::plan::doctor::Finding;

impl Manager {
    /// Looks at everything that this host needs.
    pub async fn doctor(&self, _permit: &Permit) -> Vec<Finding> {
        Vec::new()
    }

    /// Versions of what gvm stands on; what does not answer is left out.
    pub async fn parts(&self) -> BTreeMap<String, String> {
        let mut parts = BTreeMap::new();
        if let Ok(facts) = self.hypervisor.facts().await {
            parts.insert("libvirt".to_owned(), facts.libvirt_version);
            parts.insert("qemu".to_owned(), facts.qemu_version);
            parts.insert("uri".to_owned(), facts.uri);
        }
        parts
    }
}
