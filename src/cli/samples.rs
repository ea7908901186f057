//! Wire values for unit tests.

use crate::api::types::{CapsView, GatewayView, OperationView, SshInfo, VmView};

/// A running machine.
pub fn vm() -> VmView {
    VmView {
        id: "0192f0c1-2b3c-7d4e-8f50-111213141516".to_owned(),
        name: "dev".to_owned(),
        owner: "alice".to_owned(),
        team: String::new(),
        state: "running".to_owned(),
        detail: String::new(),
        profile: "debian".to_owned(),
        image: "debian".to_owned(),
        cpus: 2,
        memory_mib: 2048,
        disk_mib: 10240,
        gpus: Vec::new(),
        gpu_addresses: Vec::new(),
        address: "10.77.0.12".to_owned(),
        mac: "52:54:00:00:00:0c".to_owned(),
        guest_user: "debian".to_owned(),
        first_boot: "done".to_owned(),
        is_reachable: true,
        accelerator: "kvm".to_owned(),
        caps: CapsView::default(),
        caps_in_force: None,
        tags: Vec::new(),
        needs_restart: false,
        ttl_seconds: None,
        expires_at: None,
        undelete_until: None,
        created_at: "2026-11-30T12:00:00Z".to_owned(),
        generation: 1,
    }
}

/// A pending create.
pub fn operation() -> OperationView {
    OperationView {
        id: "0192f0c1-2b3c-7d4e-8f50-222222222222".to_owned(),
        at: "2026-11-30T12:00:00Z".to_owned(),
        actor: "alice".to_owned(),
        action: "vm.create".to_owned(),
        target: "alice/dev".to_owned(),
        outcome: "pending".to_owned(),
        detail: String::new(),
        finished_at: None,
    }
}

/// How to reach [`vm`].
pub fn ssh() -> SshInfo {
    SshInfo {
        vm: "dev".to_owned(),
        owner: "alice".to_owned(),
        guest_user: "debian".to_owned(),
        host_keys: vec!["ssh-ed25519 AAAAguest".to_owned()],
        address: "10.77.0.12".to_owned(),
        gateway: GatewayView {
            host: "localhost".to_owned(),
            port: 2222,
            host_keys: vec!["ssh-ed25519 AAAAgateway".to_owned()],
        },
    }
}
