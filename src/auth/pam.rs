//! The host's own logins, judged by PAM in a process of its own.
//!
//! Modules of PAM are strangers' code: they block, fork, print and are not made for threads. So `gvm helper pam` loads them,
//! one login a process, with a deadline. The password goes over its standard input, never in arguments or environment.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::child::ChildCall;
use crate::config::PamConfig;
use crate::model::login::pam::{MAX_PASSWORD, PamAnswer, PamQuestion};
use crate::model::secret::Secret;

/// Modules that ask a network service take seconds; a wrong password makes `pam_unix` wait two.
const DEADLINE: Duration = Duration::from_secs(15);
/// One line.
const MAX_ANSWER: usize = 4096;
/// Where services are looked for.
const FOLDERS: [&str; 2] = ["/etc/pam.d", "/usr/lib/pam.d"];

/// Why nobody is known after all.
#[derive(Debug, thiserror::Error)]
pub enum PamError {
    /// The login and the password do not belong together, or the login may not be used.
    #[error("PAM refuses it (code {0})")]
    Refused(i32),
    /// Nobody could judge.
    #[error("PAM cannot judge: {0}")]
    Failed(String),
}

/// Asks PAM.
#[derive(Debug)]
pub struct Pam {
    config: PamConfig,
    helper: PathBuf,
}

impl Pam {
    /// With this service.
    pub fn new(config: PamConfig) -> Self {
        let this = || std::env::current_exe().unwrap_or_else(|_| "gvm".into());
        Self { helper: config.helper.clone().unwrap_or_else(this), config }
    }

    /// The login that the password opens.
    ///
    /// # Errors
    /// See [`PamError`].
    pub async fn login(&self, user: &str, password: &Secret<String>) -> Result<String, PamError> {
        let failed = |what: &str, why: &dyn std::fmt::Display| PamError::Failed(format!("{what}: {why}"));
        let is_usable = |text: &str, max: usize| !text.is_empty() && text.len() <= max && !text.contains('\0');
        if !is_usable(user, 256) || !is_usable(password.expose(), MAX_PASSWORD) {
            return Err(PamError::Refused(0));
        }
        self.must_exist()?;
        let question = PamQuestion {
            service: self.config.service.clone(),
            confdir: self.config.confdir.clone(),
            user: user.to_owned(),
            password: password.expose().clone(),
        };
        let question = serde_json::to_vec(&question).map_err(|e| failed("the question", &e))?;
        let stdin = piped(&question).map_err(|e| failed("the helper's input", &e))?;
        let call = ChildCall::new(&self.helper, DEADLINE).args(["helper", "pam"]).stdin(stdin).max_output(MAX_ANSWER);
        let output = call.run().await.map_err(|e| failed("the helper", &e))?;
        // Modules may print as well: the answer is the last line.
        let line = output.stdout.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).unwrap_or_default();
        match serde_json::from_slice(line) {
            Ok(PamAnswer::Accepted { user }) if output.is_success() => Ok(user),
            Ok(PamAnswer::Refused { code }) if output.is_success() => Err(PamError::Refused(code)),
            Ok(PamAnswer::Failed { why }) => Err(PamError::Failed(why)),
            _ => Err(PamError::Failed(output.complaint())),
        }
    }

    /// Without its own file PAM would take the one of `other`, which nobody meant.
    fn must_exist(&self) -> Result<(), PamError> {
        let folders: Vec<&Path> = match &self.config.confdir {
            Some(folder) => vec![folder],
            None => FOLDERS.iter().map(Path::new).collect(),
        };
        let service = &self.config.service;
        if folders.iter().any(|folder| folder.join(service).is_file()) {
            return Ok(());
        }
        Err(PamError::Failed(format!(
            "there is no service {service} in {}",
            folders.first().unwrap_or(&Path::new("")).display()
        )))
    }
}

/// A pipe that holds all of it already: it is smaller than what the kernel keeps in one.
fn piped(bytes: &[u8]) -> std::io::Result<File> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    File::from(write).write_all(bytes)?;
    Ok(File::from(read))
}
