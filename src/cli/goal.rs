//! When a change has come to its end, as a function of what was seen.

use crate::api::types::{OperationView, VmView};

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Made, booted and reachable.
    Created,
    /// Booted and reachable.
    Started,
    /// Booted anew and reachable.
    Restarted,
    /// Off.
    Stopped,
    /// Held.
    Paused,
    /// Executing again.
    Resumed,
    /// In its undelete window, or gone.
    Deleted,
    /// Gone with everything that belonged to it.
    Gone,
    /// Out of its undelete window.
    Undeleted,
    /// The operation is over.
    Done,
}

impl Goal {
    /// For `X is ...` and `X is not ...`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Created | Self::Started | Self::Restarted => "ready",
            Self::Stopped => "stopped",
            Self::Paused => "paused",
            Self::Resumed => "running",
            Self::Deleted => "deleted",
            Self::Gone => "gone",
            Self::Undeleted => "back",
            Self::Done => "changed",
        }
    }
}

/// What a wait has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// True from the first look on.
    pub is_looked_at: bool,
    /// The machine; `None` where it is gone.
    pub vm: Option<VmView>,
    /// The operation; `None` where it cannot be seen.
    pub operation: Option<OperationView>,
    /// True where the event `ready` came.
    pub is_ready: bool,
}

/// Where a change stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done.
    Reached,
    /// It will not happen, for this reason.
    Failed(String),
    /// The last try failed for this reason; the manager tries again.
    Failing(String),
    /// Under way.
    NotYet,
}

/// Judges what was seen.
pub fn judge(goal: Goal, seen: &Seen) -> Verdict {
    if !seen.is_looked_at {
        return Verdict::NotYet;
    }
    let outcome = seen.operation.as_ref().map(|operation| operation.outcome.as_str());
    if let (Some("failure" | "denied"), Some(operation)) = (outcome, &seen.operation) {
        let detail = seen.vm.as_ref().map(|vm| vm.detail.clone()).unwrap_or_default();
        return Verdict::Failed(if operation.detail.is_empty() { detail } else { operation.detail.clone() });
    }
    let Some(vm) = &seen.vm else {
        return match goal {
            Goal::Deleted | Goal::Gone => Verdict::Reached,
            _ => Verdict::Failed("it does not exist any more".to_owned()),
        };
    };
    let is_over = match outcome {
        Some(outcome) => outcome == "success",
        // Where the operation cannot be seen, a machine at rest is taken as the end.
        None => !matches!(vm.state.as_str(), "pending" | "creating" | "stopping" | "deleting"),
    };
    let state = vm.state.as_str();
    // Without an image there is no system that could come up.
    let is_up = state == "running" && (vm.is_reachable || seen.is_ready || vm.image.is_empty());
    if goal == Goal::Created && vm.first_boot == "failed" {
        return Verdict::Failed(first_boot(vm));
    }
    let is_reached = match goal {
        Goal::Created | Goal::Started => is_up,
        Goal::Restarted => is_over && is_up,
        Goal::Stopped => matches!(state, "stopped" | "deleted"),
        Goal::Paused => state == "paused",
        Goal::Resumed => state == "running",
        Goal::Deleted => state == "deleted",
        Goal::Gone => false,
        Goal::Undeleted => is_over && !matches!(state, "deleted" | "deleting"),
        Goal::Done => is_over,
    };
    let is_start = matches!(goal, Goal::Created | Goal::Started | Goal::Restarted | Goal::Resumed);
    match state {
        _ if is_reached => Verdict::Reached,
        "stopped" if is_start && outcome == Some("success") => Verdict::Failed("it went off again".to_owned()),
        "failed" | "degraded" => Verdict::Failing(vm.detail.clone()),
        _ => Verdict::NotYet,
    }
}

fn first_boot(vm: &VmView) -> String {
    let detail = if vm.detail.is_empty() { String::new() } else { format!(": {}", vm.detail) };
    if vm.is_reachable {
        format!("its first boot failed{detail} (log in with `gvm ssh {}` and look)", vm.name)
    } else {
        format!("its first boot failed{detail}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::samples;

    fn seen(state: &str, is_reachable: bool, outcome: &str) -> Seen {
        let vm = VmView { state: state.to_owned(), is_reachable, detail: "why".to_owned(), ..samples::vm() };
        let operation = OperationView { outcome: outcome.to_owned(), ..samples::operation() };
        Seen { is_looked_at: true, vm: Some(vm), operation: Some(operation), is_ready: false }
    }

    fn check(goal: Goal, state: &str, is_reachable: bool, outcome: &str, verdict: Verdict) {
        assert_eq!(judge(goal, &seen(state, is_reachable, outcome)), verdict, "{goal:?} {state} {outcome}");
    }

    #[test]
    fn each_goal_is_reached_by_its_state_and_no_sooner() {
        use Verdict::{NotYet, Reached};
        check(Goal::Created, "creating", false, "pending", NotYet);
        check(Goal::Created, "running", false, "success", NotYet);
        check(Goal::Created, "running", true, "pending", Reached);
        check(Goal::Restarted, "running", true, "pending", NotYet);
        check(Goal::Restarted, "running", true, "success", Reached);
        check(Goal::Stopped, "stopping", false, "pending", NotYet);
        check(Goal::Stopped, "stopped", false, "pending", Reached);
        check(Goal::Deleted, "deleted", false, "success", Reached);
        check(Goal::Gone, "deleted", false, "success", NotYet);
        check(Goal::Undeleted, "deleted", false, "pending", NotYet);
        check(Goal::Undeleted, "stopped", false, "success", Reached);
        check(Goal::Done, "running", true, "pending", NotYet);
        check(Goal::Done, "stopped", false, "success", Reached);
    }

    #[test]
    fn a_failed_operation_is_the_end_and_a_failed_state_is_not() {
        check(Goal::Created, "failed", false, "failure", Verdict::Failed("why".to_owned()));
        check(Goal::Created, "failed", false, "pending", Verdict::Failing("why".to_owned()));
        check(Goal::Stopped, "failed", false, "pending", Verdict::Failing("why".to_owned()));
        check(Goal::Started, "stopped", false, "success", Verdict::Failed("it went off again".to_owned()));
        check(Goal::Started, "stopped", false, "pending", Verdict::NotYet);
    }

    #[test]
    fn a_failed_first_boot_ends_a_create_only() {
        let mut one = seen("running", true, "success");
        one.vm.as_mut().unwrap().first_boot = "failed".to_owned();
        assert!(matches!(judge(Goal::Created, &one), Verdict::Failed(why) if why.contains("gvm ssh dev")));
        assert_eq!(judge(Goal::Started, &one), Verdict::Reached);
    }

    #[test]
    fn the_ready_event_counts_where_nothing_can_be_reached() {
        let mut one = seen("running", false, "success");
        one.is_ready = true;
        assert_eq!(judge(Goal::Created, &one), Verdict::Reached);
    }

    #[test]
    fn a_machine_that_is_gone_is_an_end_for_everybody() {
        let gone = Seen { is_looked_at: true, ..Seen::default() };
        assert_eq!(judge(Goal::Gone, &gone), Verdict::Reached);
        assert!(matches!(judge(Goal::Started, &gone), Verdict::Failed(_)));
        assert_eq!(judge(Goal::Gone, &Seen::default()), Verdict::NotYet);
    }
}
