//! The command line on another machine: nothing but HTTPS leads to the manager.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::support::served::Served;

/// A home on a machine without a socket.
struct Laptop {
    dir: tempfile::TempDir,
}

#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Laptop {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("home")).unwrap();
        let config = format!("[manager]\nsocket = \"{}/none.sock\"\n", dir.path().display());
        std::fs::write(dir.path().join("gvm.toml"), config).unwrap();
        Self { dir }
    }

    fn gvm(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gvm"));
        command.args(args).env_clear().env("HOME", self.dir.path().join("home")).env("PATH", "/usr/bin:/bin");
        command.env("GVM_CONFIG", self.dir.path().join("gvm.toml")).env("TZ", "UTC").stdin(Stdio::null());
        command
    }

    async fn run(&self, args: &[&str]) -> Ran {
        self.ran(self.gvm(args)).await
    }

    async fn ran(&self, mut command: Command) -> Ran {
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// A file with a token.
    fn token_file(&self, text: &str) -> String {
        let path = self.dir.path().join("token");
        std::fs::write(&path, format!("{text}\n")).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn login_list_token_and_logout_over_https() {
    let (served, laptop) = (Served::new().await, Laptop::new());
    let (url, pin) = (served.url().to_string(), served.pin().to_string());
    let text = served.token.text.secret().expose().clone();
    let file = laptop.token_file(&text);
    // Nobody is there to look at the fingerprint, so it has to be told.
    let ran = laptop.run(&["login", &url, "--token-file", &file]).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains(&pin) && ran.stderr.contains("--fingerprint"), "{ran:?}");
    let ran = laptop.run(&["login", &url, "--token-file", &file, "--fingerprint", &pin]).await;
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), format!("logged in to {url} as eve (member)\n").as_str()),
        "{ran:?}"
    );
    let kept = laptop.dir.path().join("home/.config/gvm/hosts.toml");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&kept), mode(kept.parent().unwrap())), (0o600, 0o700));

    // The last login is asked from now on.
    let ran = laptop.run(&["list"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = laptop.run(&["create", "dev", "--profile", "firmware", "--no-wait"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = laptop.run(&["-o", "json", "show", "dev"]).await;
    assert!(ran.code == Some(0) && ran.stdout.contains("\"name\": \"dev\""), "{ran:?}");

    // For programs: the token alone on standard output, once.
    let ran = laptop.run(&["-q", "token", "create", "ci", "--scope", "read", "--ttl", "30d"]).await;
    let ci = ran.stdout.trim().to_owned();
    assert_eq!((ran.code, ran.stdout.lines().count(), ran.stderr.as_str()), (Some(0), 1, ""), "{ran:?}");
    assert!(ci.starts_with("gvm_p_"), "{ran:?}");
    let ran = laptop.run(&["token", "list"]).await;
    assert!(ran.stdout.contains("ci") && ran.stdout.contains("read") && !ran.stdout.contains(&ci), "{ran:?}");

    // Without a login, by the environment.
    let other = Laptop::new();
    let by_env = |args: &[&str]| {
        let mut command = other.gvm(args);
        command.env("GVM_HOST", &url).env("GVM_TOKEN", &ci).env("GVM_FINGERPRINT", &pin);
        command
    };
    let ran = other.ran(by_env(&["list"])).await;
    assert!(ran.code == Some(0) && ran.stdout.contains("dev"), "{ran:?}");
    let ran = other.ran(by_env(&["delete", "dev", "--now", "--yes"])).await;
    assert_eq!(ran.code, Some(3), "it reads and does nothing else: {ran:?}");
    let ran = laptop.run(&["token", "revoke", &ci]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "revoked ci\n"), "{ran:?}");
    let ran = other.ran(by_env(&["list"])).await;
    assert!(ran.code == Some(3) && ran.stderr.contains("the token is not good"), "{ran:?}");

    // The login's own token ends with it.
    let ran = laptop.run(&["logout"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!std::fs::read_to_string(&kept).unwrap().contains("gvm_"));
    assert_eq!(served.request("GET", "/v1/me").send().await.unwrap().status(), 401);
    let ran = laptop.run(&["logout"]).await;
    assert_eq!(ran.code, Some(4), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_changed_is_refused_loudly() {
    let (first, second, laptop) = (Served::new().await, Served::new().await, Laptop::new());
    let file = laptop.token_file(first.token.text.secret().expose());
    let ran = laptop
        .run(&["login", &first.url().to_string(), "--token-file", &file, "--fingerprint", &first.pin().to_string()])
        .await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // The same name, another server behind it.
    let kept = laptop.dir.path().join("home/.config/gvm/hosts.toml");
    let text = std::fs::read_to_string(&kept).unwrap().replace(&first.url().to_string(), &second.url().to_string());
    std::fs::write(&kept, text).unwrap();
    let ran = laptop.run(&["list"]).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(
        ran.stderr.contains("not the one that you logged in to") && ran.stderr.contains("--fingerprint"),
        "{ran:?}"
    );
    assert!(ran.stderr.contains(&second.pin().to_string()), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ways_that_cannot_work_say_what_to_do() {
    let (served, laptop) = (Served::new().await, Laptop::new());
    let url = served.url().to_string();
    let pin = served.pin().to_string();
    for (args, code, words) in [
        (vec!["login"], 2, "gvm login https://HOST"),
        (vec!["login", "http://gpu.example"], 2, "would send your token in clear"),
        (vec!["login", "gpu.example"], 2, "write https://HOST"),
        (vec!["login", &url, "--fingerprint", "x"], 2, "no fingerprint"),
        (vec!["login", &url, "--fingerprint", &pin], 2, "--token-file"),
        (vec!["login", "https://localhost:1", "--token-file", "/dev/null"], 6, "https.listen"),
        (vec!["--host", &url, "list"], 3, "--fingerprint"),
        (vec!["--host", &url, "--pin", &pin, "list"], 3, "gvm login"),
    ] {
        let ran = laptop.run(&args).await;
        assert!(ran.code == Some(code) && ran.stderr.contains(words), "{args:?}: {ran:?}");
    }
    let file = laptop.token_file("gvm_p_mistyped");
    let ran = laptop.run(&["login", &url, "--fingerprint", &pin, "--token-file", &file]).await;
    assert!(ran.code == Some(2) && ran.stderr.contains("no token of gvm"), "{ran:?}");
}
