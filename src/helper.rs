//! The child mode for kernel writes that can block: `gvm helper`.
//!
//! ```text
//!   manager --starts--> gvm helper bind|restore|make-vgpu|... --root / ADDRESS... --writes--> /sys
//!           <--lines of JSON: what it is about to do, what it has done--+
//! ```
//!
//! `gvm helper pam` judges one password ([`pam`]): modules of PAM are kept out of the manager for the same reason.
//!
//! One job, then it ends. A write that hangs holds this process and nothing else: no runtime, no configuration, no
//! connection. It knows no lease and no machine; whether the job may be done was decided by who started it. Where the
//! manager dies meanwhile, it goes on to the end of its job.

#[cfg(feature = "libvirt")]
pub mod pam;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::gpu::steps::{Progress, Steps};
use crate::model::card::function::HelperJob;

/// Does a job and tells about it on standard output.
pub fn run(root: &Path, nvml: Option<&Path>, patience: Duration, job: &HelperJob) -> ExitCode {
    let mut lines = 0_u32;
    let mut tell = |progress: &Progress| {
        say(progress);
        lines += 1;
        hold(lines);
    };
    let mut steps = Steps::new(root, patience, &mut tell);
    let done = match job {
        HelperJob::Driver(job) => steps.run(job),
        HelperJob::Vgpu(job) => steps.run_vgpu(job, nvml),
        HelperJob::Shape(job) => steps.run_shape(job, nvml),
        HelperJob::ResetFunction(address) => steps.run_reset(*address),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            say(&Progress::Failed { kind: error.kind, text: error.text });
            ExitCode::FAILURE
        }
    }
}

/// Nobody may be listening any more; the job is finished nevertheless.
fn say(progress: &Progress) {
    let Ok(mut line) = serde_json::to_string(progress) else { return };
    line.push('\n');
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// In tests, waits for ever after so many lines.
fn hold(lines: u32) {
    let _ = lines;
    #[cfg(feature = "hold")]
    if std::env::var("GVM_HOLD_HELPER").is_ok_and(|at| at == lines.to_string()) {
        loop {
            std::thread::park();
        }
    }
}
