//! A small world around the SSH gateway: the gateway in this process on a free port, a directory that the test
//! fills in, a real OpenSSH sshd as the guest, and the real OpenSSH clients.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use gvm::api::error::{ErrorBody, ErrorCode};
use gvm::api::types::{AnnounceGateway, Identified, ResolveTarget, Target};
use gvm::gate::Limits;
use gvm::gateway::dial::TcpDialer;
use gvm::gateway::directory::{Directory, Refusal};
use gvm::gateway::{Gateway, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

/// No client of a test runs longer.
const CLIENT_DEADLINE: Duration = Duration::from_secs(120);
/// A guest's sshd that works is up within.
const GUEST_DEADLINE: Duration = Duration::from_secs(10);

/// The manager's answers, as the test wants them.
#[derive(Default)]
pub struct Book {
    pub keys: Mutex<HashMap<String, String>>,
    pub machines: Mutex<HashMap<String, Result<Target, ErrorBody>>>,
    pub asked: Mutex<Vec<ResolveTarget>>,
    pub announced: Mutex<Option<AnnounceGateway>>,
    pub is_down: AtomicBool,
}

impl Book {
    fn check(&self) -> Result<(), Refusal> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(Refusal::new(ErrorCode::Unavailable, "the gvm manager does not answer at the moment"));
        }
        Ok(())
    }

    /// From now on `vm` is answered with this.
    pub fn set(&self, vm: &str, answer: Result<Target, ErrorBody>) {
        self.machines.lock().unwrap().insert(vm.to_owned(), answer);
    }

    /// From now on the key in this `.pub` file is that member's.
    pub fn register(&self, public: &Path, user: &str) {
        self.keys.lock().unwrap().insert(identity(public), user.to_owned());
    }
}

#[async_trait]
impl Directory for Book {
    async fn ready(&self) -> Result<(), Refusal> {
        self.check()
    }

    async fn identify(&self, public_key: &str) -> Result<Option<Identified>, Refusal> {
        self.check()?;
        let user = self.keys.lock().unwrap().get(public_key).cloned();
        Ok(user.map(|user| Identified { user }))
    }

    async fn resolve(&self, ask: &ResolveTarget) -> Result<Target, Refusal> {
        self.check()?;
        self.asked.lock().unwrap().push(ask.clone());
        let found = self.machines.lock().unwrap().get(&ask.vm).cloned();
        found
            .unwrap_or_else(|| Err(body(ErrorCode::NotFound, &format!("there is no machine {}", ask.vm), None)))
            .map_err(Refusal::from)
    }

    async fn announce(&self, gateway: &AnnounceGateway) -> Result<(), Refusal> {
        self.check()?;
        *self.announced.lock().unwrap() = Some(gateway.clone());
        Ok(())
    }
}

pub fn body(code: ErrorCode, message: &str, hint: Option<&str>) -> ErrorBody {
    ErrorBody { code, message: message.to_owned(), hint: hint.map(str::to_owned), request_id: None }
}

/// Kind and body of the key in a `.pub` file.
pub fn identity(public: &Path) -> String {
    let text = fs::read_to_string(public).unwrap();
    text.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Makes a key at `path` and gives its public half's path.
pub fn keygen(path: &Path, kind: &[&str]) -> PathBuf {
    let made = std::process::Command::new("ssh-keygen")
        .args(["-q", "-N", "", "-C", "", "-f"])
        .arg(path)
        .args(kind)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    path.with_extension("pub")
}

pub fn free_port() -> u16 {
    StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// A real sshd on a port of its own, which stands for a guest.
pub struct Guest {
    child: Child,
    pub port: u16,
    pub host_key: String,
}

impl Guest {
    /// Starts sshd in `folder`, with these lines in its configuration before the usual ones.
    pub async fn start(folder: &Path, extra: &str) -> Self {
        fs::create_dir_all(folder).unwrap();
        let host_key = keygen(&folder.join("host"), &["-t", "ed25519"]);
        let port = free_port();
        let config = format!(
            "{extra}\nListenAddress 127.0.0.1:{port}\nHostKey {0}/host\nAuthorizedKeysFile {0}/authorized_keys\n\
             PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n\
             AcceptEnv LANG LC_* GVM_*\nSubsystem sftp /usr/lib/openssh/sftp-server\nMaxStartups 500\n\
             MaxSessions 200\nPrintMotd no\nPermitUserEnvironment no\nUseDNS no\nAllowStreamLocalForwarding yes\n",
            folder.display()
        );
        let path = folder.join("sshd_config");
        fs::write(&path, config).unwrap();
        // sshd insists on /run/sshd; in a mount namespace of its own it gets one without touching the host's.
        let script = "mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec /usr/sbin/sshd -D -e -f \"$0\"";
        let log = fs::File::create(folder.join("sshd.log")).unwrap();
        let child = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", script])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let started = Instant::now();
        while tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err() {
            let log = fs::read_to_string(folder.join("sshd.log")).unwrap();
            assert!(started.elapsed() < GUEST_DEADLINE, "sshd does not start: {log}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Self { child, port, host_key: identity(&host_key) }
    }

    /// Stops listening; sessions that run go on.
    pub async fn stop(&mut self) {
        self.child.kill().await.unwrap();
    }
}

/// What a client did.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Done {
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Fails the test unless the client succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }
}

/// How a world differs from the usual one.
pub struct Wanted {
    pub sshd: String,
    pub limits: Limits,
    pub login_grace: Duration,
    pub idle: Option<Duration>,
    pub drain: Duration,
    pub rekey: Duration,
    pub stall: Duration,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            sshd: String::new(),
            limits: Limits { connections: 200, unauthenticated: 100, per_address: 200, channels: 64 },
            login_grace: Duration::from_secs(30),
            idle: None,
            drain: Duration::from_millis(200),
            rekey: Duration::from_secs(3600),
            stall: Duration::from_secs(60),
        }
    }
}

/// Gateway, guest, member and machine `dev`, also known as `dev.alice`.
pub struct World {
    pub folder: tempfile::TempDir,
    pub book: Arc<Book>,
    pub guest: Guest,
    pub address: SocketAddr,
    pub gateway_key: String,
    pub stop: CancellationToken,
    pub serving: tokio::task::JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl World {
    pub async fn new() -> Self {
        Self::with(Wanted::default()).await
    }

    pub async fn with(wanted: Wanted) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let guest = Guest::start(&path.join("guest"), &wanted.sshd).await;
        let member = keygen(&path.join("member"), &["-t", "ed25519"]);
        let robot = keygen(&path.join("robot"), &["-t", "ed25519"]);
        let authorized = format!("{}\n{}\n", identity(&member), identity(&robot));
        fs::write(path.join("guest/authorized_keys"), authorized).unwrap();

        let book = Arc::new(Book::default());
        book.register(&member, "alice");
        let settings = Settings {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            host_key: path.join("gateway/host_ed25519"),
            limits: wanted.limits,
            login_grace: wanted.login_grace,
            idle: wanted.idle,
            drain: wanted.drain,
            rekey: wanted.rekey,
            stall: wanted.stall,
        };
        let directory: Arc<dyn Directory> = Arc::<Book>::clone(&book);
        let gateway = Gateway::bind(settings, directory, Arc::new(TcpDialer)).await.unwrap();
        let (address, gateway_key) = (gateway.address(), gateway.public_key().to_owned());
        let stop = CancellationToken::new();
        let serving = tokio::spawn(gateway.serve(stop.clone()));
        let world = Self { folder, book, guest, address, gateway_key, stop, serving };
        for name in ["dev", "dev.alice"] {
            world.book.set(name, Ok(world.target()));
        }
        let known = format!(
            "[127.0.0.1]:{} {}\ndev {}\n",
            address.port(),
            world.gateway_key.split_whitespace().take(2).collect::<Vec<_>>().join(" "),
            world.guest.host_key
        );
        fs::write(world.path("known_hosts"), known).unwrap();
        world.write_config("member");
        world
    }

    /// The guest as the manager describes it.
    pub fn target(&self) -> Target {
        Target {
            vm_id: "0190-test".to_owned(),
            label: "dev.alice".to_owned(),
            address: format!("127.0.0.1:{}", self.guest.port),
            guest_user: whoami(),
            host_keys: vec![self.guest.host_key.clone()],
            private_key: Some(fs::read_to_string(self.path("robot")).unwrap()),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The client's configuration, with this key.
    pub fn write_config(&self, key: &str) {
        let folder = self.folder.path().display();
        let config = format!(
            "Host *\n UserKnownHostsFile {folder}/known_hosts\n GlobalKnownHostsFile none\n\
             StrictHostKeyChecking yes\n BatchMode yes\n IdentityFile {folder}/{key}\n IdentitiesOnly yes\n\
             IdentityAgent none\n UpdateHostKeys no\n ConnectTimeout 20\n\
             Host gw\n HostName 127.0.0.1\n Port {}\n HostKeyAlias [127.0.0.1]:{0}\n\
             Host dev\n User {}\n HostKeyAlias dev\n",
            self.address.port(),
            whoami()
        );
        fs::write(self.path("config"), config).unwrap();
    }

    /// `program -F config arguments`.
    pub fn client(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg("-F").arg(self.path("config")).args(arguments).env_remove("SSH_AUTH_SOCK").kill_on_drop(true);
        command
    }

    /// Runs `ssh` with these arguments.
    pub async fn ssh(&self, arguments: &[&str]) -> Done {
        run(self.client("ssh", arguments), b"").await
    }
}

pub fn whoami() -> String {
    nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name
}

/// Runs a client to its end with this on its standard input.
pub async fn run(mut command: Command, input: &[u8]) -> Done {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let (mut stdin, mut stdout, mut stderr) =
        (child.stdin.take().unwrap(), child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let work = async {
        let feed = async {
            // A client that does not want it all is fine.
            let _ = stdin.write_all(input).await;
            drop(stdin);
        };
        let (_, out_done, err_done) = tokio::join!(feed, stdout.read_to_end(&mut out), stderr.read_to_end(&mut err));
        out_done.unwrap();
        err_done.unwrap();
        child.wait().await.unwrap()
    };
    let status = tokio::time::timeout(CLIENT_DEADLINE, work).await.unwrap_or_else(|_| panic!("{command:?} hangs"));
    Done { code: status.code(), stdout: out, stderr: String::from_utf8_lossy(&err).into_owned() }
}

/// An ssh-agent with keys.
pub struct Agent {
    _child: Child,
    pub socket: PathBuf,
}

impl Agent {
    pub async fn start(socket: PathBuf, keys: &[PathBuf]) -> Self {
        let child = Command::new("ssh-agent")
            .args(["-D", "-a"])
            .arg(&socket)
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        while !socket.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for key in keys {
            let mut add = Command::new("ssh-add");
            add.arg("-q").arg(key).env("SSH_AUTH_SOCK", &socket);
            run(add, b"").await.ok();
        }
        Self { _child: child, socket }
    }
}
