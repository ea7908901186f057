//! The fake's own part: faults on demand.

use std::time::Duration;

use gvm::hypervisor::fake::{FakeHypervisor, Guest, Op};
use gvm::hypervisor::{ErrorKind, Hypervisor, Wake};
use gvm::model::state::{Observed, Power, WhyPaused};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::samples::{block_on, domain, firmware_only};

#[test]
fn faults_come_as_often_as_arranged() {
    block_on(async {
        let (fake, spec) = (FakeHypervisor::new(), firmware_only());
        fake.fail_next(Op::Define, ErrorKind::Transient, 2);
        for _ in 0..2 {
            assert_eq!(fake.define(&spec).await.unwrap_err().kind, ErrorKind::Transient);
            assert_eq!(fake.observe(spec.id).await, Observed::Missing);
        }
        fake.lose_reply(Op::Define, 1);
        assert_eq!(fake.define(&spec).await.unwrap_err().kind, ErrorKind::Transient);
        assert_eq!(domain(&fake, spec.id).await.power, Power::Off);
        assert_eq!((fake.count(Op::Define, spec.id), fake.count(Op::Start, spec.id)), (3, 0));
    });
}

#[test]
fn a_hung_call_ends_by_release_or_by_deadline() {
    block_on(async {
        let (fake, spec) = (FakeHypervisor::new(), firmware_only());
        fake.set_deadline(Duration::from_millis(20));
        fake.hang(Op::Define);
        assert_eq!(fake.define(&spec).await.unwrap_err().kind, ErrorKind::Transient);
        fake.set_deadline(Duration::from_secs(60));
        let (defined, ()) = tokio::join!(fake.define(&spec), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            fake.release(Op::Define);
        });
        defined.unwrap();
    });
}

#[test]
fn guests_and_strangers_do_as_they_please() {
    block_on(async {
        let (fake, spec) = (FakeHypervisor::new(), firmware_only());
        let vm = spec.id;
        fake.define(&spec).await.unwrap();
        fake.set_guest(vm, Guest::AfterAsks(2));
        fake.start(vm).await.unwrap();
        fake.shutdown(vm).await.unwrap();
        assert_eq!((domain(&fake, vm).await.power, fake.asks(vm)), (Power::Running, 1));
        fake.shutdown(vm).await.unwrap();
        let ended = domain(&fake, vm).await;
        assert!(ended.power == Power::Off && ended.is_off_by_guest);
        fake.set_guest(vm, Guest::Lingering);
        fake.start(vm).await.unwrap();
        fake.shutdown(vm).await.unwrap();
        assert_eq!(domain(&fake, vm).await.power, Power::ShuttingDown);
        fake.finish_shutdown(vm);
        fake.start(vm).await.unwrap();
        fake.fail_storage(vm);
        assert_eq!(domain(&fake, vm).await.power, Power::Paused(WhyPaused::StorageError));
        fake.crash(vm);
        let crashed = domain(&fake, vm).await;
        assert!(crashed.power == Power::Off && !crashed.is_off_by_guest);
        fake.add_stranger("gvm-foreign");
        assert_eq!(fake.strangers().await.unwrap(), ["gvm-foreign"]);
        fake.undefine_behind(vm);
        assert_eq!(fake.observe(vm).await, Observed::Missing);
    });
}

#[test]
fn silence_is_unknown_and_wakes_everything() {
    block_on(async {
        let (fake, spec) = (FakeHypervisor::new(), firmware_only());
        let mut wakes = fake.wakes().unwrap();
        fake.set_unknown(true);
        assert!(matches!(fake.observe(spec.id).await, Observed::Unknown(_)));
        assert_eq!(fake.observe_all().await.unwrap_err().kind, ErrorKind::Transient);
        assert_eq!(wakes.try_recv(), Ok(Wake::All));
    });
}

#[test]
fn the_console_says_back_what_it_hears_until_another_opens() {
    block_on(async {
        let (fake, spec) = (FakeHypervisor::new(), firmware_only());
        fake.define(&spec).await.unwrap();
        fake.start(spec.id).await.unwrap();
        let mut line = fake.console(spec.id).await.unwrap();
        line.write_all(b"hello").await.unwrap();
        let mut heard = [0; 5];
        line.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"hello");
        let mut other = fake.console(spec.id).await.unwrap();
        assert_eq!(line.read(&mut heard).await.unwrap(), 0);
        assert!(line.write_all(b"x").await.is_err());
        fake.force_off(spec.id).await.unwrap();
        assert_eq!(other.read(&mut heard).await.unwrap(), 0);
    });
}
