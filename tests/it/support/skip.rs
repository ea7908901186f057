//! Which suites are wanted, and how a test that is not run says so.

/// Says which suites beyond the usual ones are wanted: `libvirt`, `lab`, `gpu`, separated by commas.
pub const SUITES: &str = "GVM_E2E";

/// Ends the calling test where its suite is not wanted or cannot be run, with a line that scripts count:
/// `SKIPPED <test>: <why>`.
macro_rules! need_libvirt {
    () => {{
        fn here() {}
        if let Some(why) = $crate::support::skip::why_no_libvirt() {
            return $crate::support::skip::say($crate::support::skip::test_of(std::any::type_name_of_val(&here)), &why);
        }
    }};
}

pub(crate) use need_libvirt;

/// True where the long variants are wanted (`scripts/test.sh --all`).
pub fn is_long() -> bool {
    std::env::var_os("GVM_LONG").is_some()
}

/// `it::suite::test::here` -> `suite::test`, as the test runner names it.
pub fn test_of(here: &str) -> &str {
    here.trim_start_matches("it::").trim_end_matches("::here")
}

/// Why tests over a real libvirtd cannot be run.
pub fn why_no_libvirt() -> Option<String> {
    if !std::env::var(SUITES).is_ok_and(|suites| suites.split(',').any(|suite| suite == "libvirt")) {
        return Some(format!("needs root, libvirtd and QEMU; run it with {SUITES}=libvirt"));
    }
    if !nix::unistd::geteuid().is_root() {
        return Some("needs root (namespaces, bridges, cgroups)".to_owned());
    }
    let script = super::private_host::script();
    (!script.exists()).then(|| format!("{} is not there", script.display()))
}

/// The line itself. Written past the test runner's capture, which hides what passing tests print.
pub fn say(test: &str, why: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED {test}: {why}");
}
