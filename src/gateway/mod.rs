//! The SSH gateway: an unprivileged process that asks the manager where a key leads.

use crate::config::Config;

/// Runs the gateway until it is told to stop.
///
/// # Errors
/// Says why it cannot run.
#[allow(clippy::unused_async)]
pub async fn run(_config: Config) -> anyhow::Result<()> {
    anyhow::bail!("the gateway is not built yet")
}
