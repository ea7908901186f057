//! The routes' table: what each asks the policy, and what who may is answered.

use gvm::auth::policy::Action;
use gvm::model::id::VmId;
use serde_json::{Value, json};

/// What a route asks the policy.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    /// Nothing: it is for who is not known yet.
    Anybody,
    /// Only that the caller is somebody.
    Known,
    /// About nobody's or the caller's own things.
    Own(Action),
    /// The first of these, about everybody's things, or else the second, about one's own.
    Widest(Action, Action),
    /// About the machine in the path.
    Vm(Action),
    /// About the person in the path.
    User(Action),
    /// About the team in the path.
    Team(Action),
}

pub(super) struct Route {
    pub method: &'static str,
    /// As the document has it, perhaps with a query.
    pub path: &'static str,
    pub body: Value,
    pub ask: Ask,
    /// The answer to who may: often a refusal of another kind, because the thing is in no state for it.
    pub answer: u16,
}

fn route(method: &'static str, path: &'static str, body: Value, ask: Ask, answer: u16) -> Route {
    Route { method, path, body, ask, answer }
}

/// All routes. A new operation of the API fails a test below until it has its line here.
pub(super) fn routes() -> Vec<Route> {
    use Action as A;
    use Ask::{Anybody, Known, Own, Team, User, Vm, Widest};
    let none = || Value::Null;
    let key = json!({"public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdZ0vJtYXQ0ZXJvZnRlc3RzYW5kbm90aGluZ2Vsc2Uh"});
    let target = json!({"public_key": key["public_key"], "vm": "dev", "mode": "jump", "peer": "192.0.2.1"});
    vec![
        route("GET", "/v1/vms", none(), Own(A::VmSee), 200),
        route("GET", "/v1/vms?all=true", none(), Own(A::VmSeeAll), 200),
        route("POST", "/v1/vms", json!({"profile": "firmware", "is_stopped": true}), Own(A::VmCreate), 202),
        route("GET", "/v1/vms/{vm}", none(), Vm(A::VmSee), 200),
        route("PATCH", "/v1/vms/{vm}", json!({"add_tags": ["x"]}), Vm(A::VmChange), 202),
        route("DELETE", "/v1/vms/{vm}", none(), Vm(A::VmDelete), 202),
        route("POST", "/v1/vms/{vm}/start", none(), Vm(A::VmPower), 202),
        route("POST", "/v1/vms/{vm}/stop", json!({}), Vm(A::VmPower), 202),
        route("POST", "/v1/vms/{vm}/restart", json!({}), Vm(A::VmPower), 202),
        route("POST", "/v1/vms/{vm}/pause", none(), Vm(A::VmPower), 409),
        route("POST", "/v1/vms/{vm}/resume", none(), Vm(A::VmPower), 409),
        route("POST", "/v1/vms/{vm}/undelete", none(), Vm(A::VmDelete), 409),
        route("POST", "/v1/vms/{vm}/clone", json!({"name": "copy"}), Vm(A::VmChange), 409),
        route("GET", "/v1/vms/{vm}/ssh", none(), Vm(A::VmSsh), 200),
        route("GET", "/v1/vms/{vm}/events", none(), Vm(A::VmSee), 200),
        route("GET", "/v1/events", none(), Widest(A::VmSeeAll, A::VmSee), 200),
        route("GET", "/v1/vms/{vm}/logs", none(), Vm(A::VmSee), 200),
        route("GET", "/v1/vms/{vm}/console", none(), Vm(A::VmConsole), 409),
        route("GET", "/v1/vms/{vm}/console?mode=read", none(), Vm(A::VmSee), 409),
        route("GET", "/v1/profiles", none(), Own(A::ProfileSee), 200),
        route("GET", "/v1/profiles/{profile}", none(), Own(A::ProfileSee), 200),
        route("POST", "/v1/profiles/{profile}/check", json!({}), Own(A::ProfileCheck), 200),
        route("GET", "/v1/images", none(), Own(A::ImageSee), 200),
        route("POST", "/v1/images", json!({"path": "/nonexistent/x", "name": "x"}), Own(A::ImageChange), 404),
        route("DELETE", "/v1/images/{image}", none(), Own(A::ImageChange), 404),
        route("GET", "/v1/gpus", none(), Own(A::GpuSee), 200),
        route("GET", "/v1/gpus/{gpu}", none(), Own(A::GpuSee), 404),
        route("GET", "/v1/offers", none(), Own(A::GpuSee), 200),
        route("POST", "/v1/gpu-layout", json!({"text": "version: v2"}), Own(A::GpuChange), 400),
        route("GET", "/v1/gpu-layout", none(), Own(A::GpuSee), 200),
        route("GET", "/v1/gpu-plan", none(), Own(A::GpuSee), 200),
        route("POST", "/v1/dry-run", json!({"profile": "firmware"}), Own(A::VmCreate), 200),
        route("POST", "/v1/gpus/{gpu}/mode", json!({"mode": "host"}), Own(A::GpuChange), 404),
        route("POST", "/v1/gpus/{gpu}/withhold", json!({"why": "fan"}), Own(A::GpuChange), 404),
        route("POST", "/v1/gpus/{gpu}/readmit", json!({}), Own(A::GpuChange), 404),
        route("GET", "/v1/login", none(), Anybody, 200),
        // No provider is configured here.
        route("POST", "/v1/users/{user}/logins", json!({"provider": "oidc", "subject": "x"}), User(A::UserChange), 404),
        route("POST", "/v1/login/password", json!({"user": "x", "password": "x"}), Anybody, 404),
        route("POST", "/v1/login/device", none(), Anybody, 404),
        route("POST", "/v1/login/device/poll", json!({"handle": "x"}), Anybody, 404),
        route("GET", "/v1/login/oidc/start", none(), Anybody, 404),
        route("GET", "/v1/login/oidc/callback", none(), Anybody, 404),
        route("GET", "/v1/me", none(), Known, 200),
        route("GET", "/v1/keys", none(), Own(A::KeyOwn), 200),
        route("POST", "/v1/keys", json!({"public_key": "ssh-dss AAAA"}), Own(A::KeyOwn), 400),
        route("DELETE", "/v1/keys/{key}", none(), Own(A::KeyOwn), 404),
        route("GET", "/v1/tokens", none(), Own(A::TokenChange), 200),
        route("POST", "/v1/tokens", json!({"name": "a b"}), Own(A::TokenChange), 400),
        route("DELETE", "/v1/tokens/{token}", none(), Own(A::TokenChange), 404),
        route("GET", "/v1/users", none(), Own(A::UserSeeAll), 200),
        route("POST", "/v1/users", json!({"name": "root"}), Own(A::UserChange), 400),
        route("POST", "/v1/user-import", json!({"users": []}), Own(A::UserChange), 200),
        route("GET", "/v1/users/{user}", none(), User(A::UserSee), 200),
        route("PATCH", "/v1/users/{user}", json!({"full_name": "P"}), User(A::UserChange), 200),
        route("DELETE", "/v1/users/{user}", none(), User(A::UserChange), 200),
        route("POST", "/v1/users/{user}/suspend", json!({"why": "left"}), User(A::UserChange), 200),
        route("POST", "/v1/users/{user}/resume", none(), User(A::UserChange), 409),
        route("GET", "/v1/users/{user}/keys", none(), User(A::UserChange), 200),
        route("POST", "/v1/users/{user}/keys", json!({"public_key": "ssh-dss AAAA"}), User(A::UserChange), 400),
        route("DELETE", "/v1/users/{user}/keys/{key}", none(), User(A::UserChange), 404),
        route("GET", "/v1/teams", none(), Widest(A::TeamSeeAll, A::TeamSee), 200),
        route("POST", "/v1/teams", json!({"name": "none"}), Own(A::TeamChange), 400),
        route("GET", "/v1/teams/{team}", none(), Team(A::TeamSee), 200),
        route("GET", "/v1/vms?team={team}", none(), Team(A::VmSee), 200),
        route("PATCH", "/v1/teams/{team}", json!({"description": "T"}), Team(A::TeamChange), 200),
        route("DELETE", "/v1/teams/{team}", none(), Team(A::TeamChange), 200),
        route("GET", "/v1/teams/{team}/members", none(), Team(A::TeamSee), 200),
        route("PUT", "/v1/teams/{team}/members/{user}", none(), Team(A::TeamChange), 200),
        route("DELETE", "/v1/teams/{team}/members/{user}", none(), Team(A::TeamChange), 409),
        route("GET", "/v1/quota", none(), Own(A::QuotaSee), 200),
        route("GET", "/v1/users/{user}/quota", none(), User(A::QuotaSee), 200),
        route("PATCH", "/v1/users/{user}/quota", json!({"limits": {"vms": "3"}}), User(A::UserChange), 200),
        route("GET", "/v1/teams/{team}/quota", none(), Team(A::QuotaSee), 200),
        route("PATCH", "/v1/teams/{team}/quota", json!({"limits": {"gpus": null}}), Team(A::TeamChange), 200),
        route("GET", "/v1/gateway", none(), Known, 200),
        route("POST", "/v1/gateway/identify", key, Own(A::GatewayAsk), 404),
        route("POST", "/v1/gateway/target", target, Own(A::GatewayAsk), 404),
        route("POST", "/v1/gateway/announce", json!({"host_keys": [], "port": 2222}), Own(A::GatewayAsk), 200),
        route("GET", "/v1/gateway/revocations", none(), Own(A::GatewayAsk), 200),
        route("GET", "/v1/operations", none(), Widest(A::AuditSeeAll, A::AuditSee), 200),
        route("GET", "/v1/operations/{id}", none(), Widest(A::AuditSeeAll, A::AuditSee), 404),
        route("GET", "/v1/audit", none(), Widest(A::AuditSeeAll, A::AuditSee), 200),
        route("GET", "/v1/audit/export", none(), Own(A::AuditSeeAll), 200),
        route("GET", "/v1/audit/head", none(), Own(A::AuditVerify), 200),
        route("POST", "/v1/audit/verify", json!({}), Own(A::AuditVerify), 200),
        route("GET", "/v1/doctor", none(), Own(A::Doctor), 200),
        route("GET", "/v1/backup", none(), Own(A::Backup), 200),
        route("GET", "/v1/version", none(), Known, 200),
    ]
}

impl Route {
    /// The path of a request about this machine, person or team.
    pub fn path_for(&self, vm: &str) -> String {
        self.path
            .replace("{vm}", vm)
            .replace("{profile}", "firmware")
            .replace("{image}", "none")
            .replace("{gpu}", "0000:41:00.0")
            .replace("{key}", "SHA256:none")
            .replace("{token}", "none")
            .replace("{id}", &VmId::generate().to_string())
            .replace("{user}", vm)
            .replace("{team}", vm)
    }

    /// True where the path names a machine, a person or a team.
    pub fn is_about_one(&self) -> bool {
        matches!(self.ask, Ask::Vm(_) | Ask::User(_) | Ask::Team(_))
    }
}
