//! What may happen.

use gvm::hypervisor::ErrorKind;
use gvm::hypervisor::fake::{Guest, Op};
use gvm::manager::power::Wanted;
use gvm::model::gpu::GpuRequest;
use proptest::prelude::*;

/// One event. Machines are named by the order of their making, counted round.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    Create {
        has_gpu: bool,
        is_stopped: bool,
    },
    Wish(usize, Wanted),
    Clone(usize),
    Resize {
        vm: usize,
        vcpus: u32,
        memory: u64,
        disk: u64,
    },
    Limit {
        vm: usize,
        percent: u32,
    },
    Gpus {
        vm: usize,
        count: u32,
    },
    Live {
        vm: usize,
        seconds: u64,
    },
    /// The reconciler looks so often in a row.
    Look {
        vm: usize,
        times: usize,
    },
    /// The manager dies in the middle of a look, after so many turns of it, and another one starts.
    CrashInside {
        vm: usize,
        turns: usize,
    },
    /// The manager dies and another one starts.
    Crash,
    TimePasses {
        seconds: i64,
    },
    Guest(usize, Guest),
    PowerOffInside(usize),
    FinishShutdown(usize),
    GuestCrashes(usize),
    StorageFails(usize),
    DestroyedBehind(usize),
    UndefinedBehind(usize),
    StartedBehind(usize),
    Fails {
        op: Op,
        kind: ErrorKind,
        times: u32,
    },
    LosesReply {
        op: Op,
    },
    Silence(bool),
}

fn wanted() -> impl Strategy<Value = Wanted> {
    use Wanted::{Delete, DeleteNow, ForceRestart, ForceStop, Pause, Restart, Resume, Start, Stop, Undelete};
    prop_oneof![
        4 => Just(Start),
        4 => Just(Stop),
        2 => Just(ForceStop),
        2 => Just(Restart),
        1 => Just(ForceRestart),
        2 => Just(Pause),
        2 => Just(Resume),
        2 => Just(Delete),
        1 => Just(DeleteNow),
        2 => Just(Undelete),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop::sample::select(vec![
        Op::Observe,
        Op::Define,
        Op::Start,
        Op::Shutdown,
        Op::ForceOff,
        Op::Pause,
        Op::Resume,
        Op::Undefine,
        Op::Apply,
        Op::AttachDevices,
        Op::EnsureNetwork,
        Op::EnsureHostEntry,
        Op::EnsureHostEntryGone,
    ])
}

fn guest() -> impl Strategy<Value = Guest> {
    prop::sample::select(vec![Guest::Obedient, Guest::Deaf, Guest::AfterAsks(2), Guest::Lingering])
}

/// Any event, the usual ones more often.
pub fn action() -> impl Strategy<Value = Action> {
    let vm = 0..4_usize;
    let kind = prop::sample::select(vec![ErrorKind::Transient, ErrorKind::Permanent, ErrorKind::Conflict]);
    prop_oneof![
        8 => (prop::bool::weighted(0.3), prop::bool::weighted(0.3))
            .prop_map(|(has_gpu, is_stopped)| Action::Create { has_gpu, is_stopped }),
        16 => (vm.clone(), wanted()).prop_map(|(vm, wanted)| Action::Wish(vm, wanted)),
        2 => vm.clone().prop_map(Action::Clone),
        2 => (vm.clone(), 1..4_u32, 64..192_u64, 1024..2048_u64)
            .prop_map(|(vm, vcpus, memory, disk)| Action::Resize { vm, vcpus, memory, disk }),
        1 => (vm.clone(), 10..200_u32).prop_map(|(vm, percent)| Action::Limit { vm, percent }),
        3 => (vm.clone(), 0..3_u32).prop_map(|(vm, count)| Action::Gpus { vm, count }),
        1 => (vm.clone(), 0..20_u64).prop_map(|(vm, seconds)| Action::Live { vm, seconds }),
        16 => (vm.clone(), 1..9_usize).prop_map(|(vm, times)| Action::Look { vm, times }),
        4 => (vm.clone(), 1..60_usize).prop_map(|(vm, turns)| Action::CrashInside { vm, turns }),
        2 => Just(Action::Crash),
        4 => (1..30_i64).prop_map(|seconds| Action::TimePasses { seconds }),
        2 => (vm.clone(), guest()).prop_map(|(vm, guest)| Action::Guest(vm, guest)),
        2 => vm.clone().prop_map(Action::PowerOffInside),
        1 => vm.clone().prop_map(Action::FinishShutdown),
        1 => vm.clone().prop_map(Action::GuestCrashes),
        1 => vm.clone().prop_map(Action::StorageFails),
        1 => vm.clone().prop_map(Action::DestroyedBehind),
        1 => vm.clone().prop_map(Action::UndefinedBehind),
        1 => vm.prop_map(Action::StartedBehind),
        2 => (op(), kind, 1..4_u32).prop_map(|(op, kind, times)| Action::Fails { op, kind, times }),
        2 => op().prop_map(|op| Action::LosesReply { op }),
        2 => prop::bool::weighted(0.3).prop_map(Action::Silence),
    ]
}

/// So many whole cards or, for every other one who asks, vGPUs of the one card that carries some.
pub fn requests(who: usize, count: u32) -> Vec<GpuRequest> {
    let texts = match count {
        0 => Vec::new(),
        count if who.is_multiple_of(2) => vec![count.to_string()],
        count => (0..count).map(|_| "vgpu:A100D-40C".to_owned()).collect(),
    };
    GpuRequest::parse_list(&texts).unwrap()
}
