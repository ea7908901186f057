//! Composition root of `gvm serve`.

use crate::config::Config;

/// Runs the manager until it is told to stop.
///
/// # Errors
/// Says why it cannot run.
#[allow(clippy::unused_async)]
pub async fn run(_config: Config) -> anyhow::Result<()> {
    anyhow::bail!("the manager is not built yet")
}
