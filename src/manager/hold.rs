//! Points at which a test can stop the manager to kill it.
//!
//! With the cargo feature `hold`, which no package build has, `GVM_HOLD_AT=<step>` makes the manager log
//! `holding` and wait for ever before that step.

/// A named point: logs its name and, in tests, waits here.
pub async fn point(step: &str) {
    tracing::debug!(step, "step");
    #[cfg(feature = "hold")]
    if std::env::var("GVM_HOLD_AT").is_ok_and(|at| at == step) {
        tracing::info!(step, "holding");
        std::future::pending::<()>().await;
    }
}
