//! The certificate and the protocol, judged by programs that are not ours.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gvm::api::client::Client;
use gvm::model::fingerprint::Fingerprint;

use crate::support::served::Served;
use crate::support::skip;
use crate::support::world::eventually;

/// Runs a program with nothing to say to it, apart from the runtime.
async fn run(program: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn old_protocols_are_refused_and_new_ones_spoken() {
    let served = Served::new().await;
    let at = served.address.to_string();
    for (protocol, is_spoken) in [("-tls1", false), ("-tls1_1", false), ("-tls1_2", true), ("-tls1_3", true)] {
        // The lowest level, or OpenSSL itself would not offer the old ones.
        let output = run("openssl", &["s_client", "-connect", &at, protocol, "-cipher", "ALL@SECLEVEL=0"]).await;
        let text = said(&output);
        assert_eq!(output.status.success(), is_spoken, "{protocol}: {text}");
        if is_spoken {
            assert!(text.contains("GCM") || text.contains("CHACHA20"), "{protocol}: {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_and_openssl_agree_on_the_certificate() {
    let served = Served::new().await;
    let certificate = served.world.state_dir().join("https/certificate.pem");
    let shown =
        run("openssl", &["x509", "-noout", "-fingerprint", "-sha256", "-in", certificate.to_str().unwrap()]).await;
    let shown = said(&shown);
    let hex = shown.trim().split('=').nth(1).unwrap();
    assert_eq!(hex.parse::<Fingerprint>().unwrap(), served.pin());
    let url = format!("{}/v1/me", served.url());
    let token = format!("authorization: Bearer {}", served.token.text.secret().expose());
    let curl = ["-sS", "--noproxy", "*", "--cacert", certificate.to_str().unwrap(), "-H", &token, &url];
    let text = said(&run("curl", &curl).await);
    assert!(text.contains("\"name\":\"eve\""), "{text}");
    use std::os::unix::fs::PermissionsExt as _;
    let mode =
        |name: &str| std::fs::metadata(served.world.state_dir().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("https"), mode("https/key.pem")), (0o700, 0o600));
}

/// A pair of files that sign themselves.
fn pair(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (certificate, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-keyout", key.to_str().unwrap(), "-out", certificate.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", said(&made));
    (certificate, key)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_taken_under_load_and_a_bad_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = pair(dir.path(), "a");
    let (other_certificate, other_key) = pair(dir.path(), "b");
    let files = (certificate.clone(), key.clone());
    let served = Served::with(move |config| {
        (config.https.certificate, config.https.key) = (Some(files.0), Some(files.1));
    })
    .await;
    let first = served.pin();
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load = {
        let (stop, count) = (stop.clone(), count.clone());
        let url = format!("{}/v1/me", served.url());
        let token = served.token.text.secret().expose().clone();
        tokio::spawn(async move {
            let http = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).no_proxy();
            // A connection each.
            let http = http.pool_max_idle_per_host(0).build().unwrap();
            while !stop.load(Ordering::Relaxed) {
                let answer = http.get(&url).bearer_auth(&token).send().await.unwrap();
                assert_eq!(answer.status(), 200);
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let go_on = async || {
        let so_far = count.load(Ordering::Relaxed);
        eventually("requests go on", || async { count.load(Ordering::Relaxed) > so_far + 2 }).await;
    };
    go_on().await;
    // Half of a change: the certificate of one pair beside the key of the other.
    std::fs::copy(&other_certificate, &certificate).unwrap();
    served.certificates.refresh();
    assert_eq!(Client::fingerprint_of(&served.url()).await.unwrap(), first, "the old one stays");
    go_on().await;
    std::fs::copy(&other_key, &key).unwrap();
    served.certificates.refresh();
    go_on().await;
    let second = Client::fingerprint_of(&served.url()).await.unwrap();
    assert_ne!(first, second);
    std::fs::write(&certificate, "no certificate").unwrap();
    served.certificates.refresh();
    std::fs::remove_file(&key).unwrap();
    served.certificates.refresh();
    assert_eq!(Client::fingerprint_of(&served.url()).await.unwrap(), second, "nor nonsense, nor nothing");
    go_on().await;
    stop.store(true, Ordering::Relaxed);
    load.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_scanner_finds_no_fault() {
    fn here() {}
    if Command::new("sslscan").arg("--version").output().is_err() {
        let test = skip::test_of(std::any::type_name_of_val(&here)).to_owned();
        return skip::say(&test, "sslscan is not installed (scripts/setup.sh --test)");
    }
    let served = Served::with(|config| config.https.max_per_address = 500).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/scan-tls.sh");
    let output = run(script.to_str().unwrap(), &["--check", &served.address.to_string()]).await;
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("no weak protocol"), "{}", said(&output));
}
