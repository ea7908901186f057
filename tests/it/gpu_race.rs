//! Two managers of two processes on one database race for the last card: never both, and never none.
//!
//! Only one manager runs on a state directory; this shows that not the lock alone keeps a card from two machines.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use gvm::manager::Kind;
use gvm::model::gpu::GpuRequest;
use gvm::model::id::VmId;
use gvm::store::{commit, gpus, leases, vms};

use crate::support::cards::host;
use crate::support::world::{Life, World};

const ROUNDS: usize = 1000;
/// Names the folder to the processes that race.
const FOLDER: &str = "GVM_RACE_FOLDER";
/// Before each answer of theirs; the test runner prints besides.
const MARK: &str = "RACE ";
/// For one answer.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn two_processes_never_get_the_same_card() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return race(Path::new(&folder));
    }
    let memory = Path::new("/dev/shm");
    let dir = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap();
    // SQLite does not wait for another process that makes the file as well.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    drop(runtime.block_on(World::on(dir.path()).live()));
    drop(runtime);
    let mut racers = [Racer::start(dir.path()), Racer::start(dir.path())];
    let mut wins = [0, 0];
    for round in 0..ROUNDS {
        racers.iter_mut().for_each(|racer| racer.tell(&format!("go {round}")));
        let answers: Vec<String> = racers.iter().map(Racer::answer).collect();
        let won: Vec<usize> = (0..2).filter(|racer| answers[*racer].starts_with("won ")).collect();
        let [winner] = won[..] else { panic!("round {round}: {answers:?}") };
        assert_eq!(answers[1 - winner], "lost", "round {round}");
        wins[winner] += 1;
        racers[winner].tell(answers[winner].replace("won", "free").as_str());
        assert_eq!(racers[winner].answer(), "freed", "round {round}");
    }
    println!("of {ROUNDS} rounds one process won {} and the other {}", wins[0], wins[1]);
}

struct Racer {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Racer {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "gpu_race::two_processes_never_get_the_same_card", "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, lines) = sync_channel(16);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(answer) = line.split_once(MARK).map(|(_, answer)| answer.to_owned()) {
                    let _ = sender.send(answer);
                }
            }
        });
        Self { child, stdin, lines }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn answer(&self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => panic!("no answer within {} s", PATIENCE.as_secs()),
            Err(RecvTimeoutError::Disconnected) => panic!("the process has ended"),
        }
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One of the processes: does what it is told on standard input.
fn race(folder: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut world = World::on(folder);
        world.gpus = host(&["0000:41:00.0"]);
        let life = world.live().await;
        let name = std::process::id();
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let answer = match line.split_once(' ') {
                Some(("go", round)) => go(&life, &format!("vm-{name}-{round}")).await,
                Some(("free", vm)) => free(&life, vm.parse().unwrap()).await,
                _ => format!("what is {line:?}?"),
            };
            println!("{MARK}{answer}");
        }
    });
}

async fn go(life: &Life, name: &str) -> String {
    let gpus = GpuRequest::parse_list(&["1".to_owned()]).unwrap();
    match life.create_as(name, |request| request.gpus = Some(gpus)).await {
        Ok(vm) => format!("won {vm}"),
        Err(refusal) if refusal.kind == Kind::NoCapacity && refusal.message.contains("in use") => "lost".to_owned(),
        Err(other) => format!("{other:?}"),
    }
}

async fn free(life: &Life, vm: VmId) -> String {
    let mut tx = life.store.write().await.unwrap();
    leases::release(&mut tx, vm, jiff::Timestamp::now()).await.unwrap();
    vms::forget(&mut tx, vm).await.unwrap();
    // It was never taken, and this is no way in which a card is given back.
    for row in gpus::read(&mut tx).await.unwrap() {
        gpus::decide(&mut tx, &row.id, &gpus::Decision::History(Box::default())).await.unwrap();
    }
    commit(tx).await.unwrap();
    "freed".to_owned()
}
