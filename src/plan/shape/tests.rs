use super::*;
use crate::model::card::NvmlFacts;
use crate::model::card::vgpu::{MadeVgpu, VgpuFramework, VgpuParent};
use crate::model::card::{Health, Sriov};

fn card(address: &str) -> Card {
    let card = crate::plan::inventory::tests::card(address, None);
    let sriov = Some(Sriov { enabled: 0, total: 2, functions: Vec::new() });
    let nvml = NvmlFacts {
        mig: Some(MigFacts::default()),
        host_vgpu: Some(HostVgpuMode::Sriov),
        ..NvmlFacts::at(card.address)
    };
    Card { sriov, nvml: Some(nvml), ..card }
}

fn vfs() -> Vec<Card> {
    let facts =
        VgpuParent { framework: VgpuFramework::VendorVfio, offered: Vec::new(), made: Vec::new(), faults: Vec::new() };
    ["0000:41:00.4", "0000:41:00.5"]
        .map(|address| Card {
            physfn: Some("0000:41:00.0".parse().unwrap()),
            sriov: None,
            vgpu: Some(facts.clone()),
            ..card(address)
        })
        .to_vec()
}

fn instance(text: &str) -> Instance {
    crate::model::card::shape::parse_instance(text).unwrap()
}

/// A card that answers as its driver does.
struct Host {
    card: Card,
    vfs: Vec<Card>,
    needs_reset: bool,
}

impl Host {
    fn new(needs_reset: bool) -> Self {
        Self { card: card("0000:41:00.0"), vfs: Vec::new(), needs_reset }
    }

    fn mig(&mut self) -> &mut MigFacts {
        self.card.nvml.as_mut().unwrap().mig.as_mut().unwrap()
    }

    fn next(&self, target: Target<'_>) -> Next {
        next(&self.card, &self.vfs.iter().collect::<Vec<_>>(), target)
    }

    /// Does one job as the driver would, and refuses what it refuses.
    fn take(&mut self, job: &ShapeJob) {
        let needs_reset = self.needs_reset;
        match job {
            ShapeJob::Functions { count, .. } => {
                self.vfs = if *count == Some(0) { Vec::new() } else { vfs() };
                self.card.sriov.as_mut().unwrap().enabled = u32::try_from(self.vfs.len()).unwrap();
                self.mig().instances.clear();
            }
            ShapeJob::MigMode { is_on, .. } => {
                assert!(self.vfs.is_empty(), "refused while functions are on");
                let is_on = *is_on;
                let mig = self.mig();
                mig.is_on_pending = is_on;
                if !needs_reset {
                    mig.is_on = is_on;
                }
            }
            ShapeJob::Reset { .. } => {
                assert!(self.vfs.is_empty());
                let mig = self.mig();
                mig.is_on = mig.is_on_pending;
                mig.instances.clear();
            }
            ShapeJob::MakeInstance { instance, .. } => {
                let id = u32::try_from(self.mig().instances.len()).unwrap() + 1;
                self.mig().instances.push(MadeInstance { id, instance: *instance, compute_instances: 1 });
            }
            ShapeJob::RemoveInstance { instance, .. } => {
                self.mig().instances.retain(|made| made.instance != *instance);
            }
        }
    }

    /// All jobs up to the end, in words.
    fn bring(&mut self, target: Target<'_>) -> (Vec<String>, Next) {
        let mut jobs = Vec::new();
        loop {
            match self.next(target) {
                Next::Do(job) => {
                    self.take(&job);
                    jobs.push(job.to_string().replace(" 0000:41:00.0", ""));
                    assert!(jobs.len() < 30, "{jobs:?}");
                }
                end => return (jobs, end),
            }
        }
    }
}

fn mig(instances: Option<&[&str]>) -> Shape {
    let instances = instances.map(|all| all.iter().map(|text| instance(text)).collect());
    Shape::Mig { instances, types: Vec::new() }
}

const VGPU: Shape = Shape::Vgpu { types: Vec::new() };

/// The cold start of gpu-facts 4.5; case B-mig-mode-pending.
#[test]
fn the_order_is_mode_then_functions_then_instances() {
    let layout = mig(Some(&["4g.40gb@0:4", "3g.40gb@4:4"]));
    let mut ampere = Host::new(true);
    let (jobs, end) = ampere.bring(Target::Shape(&layout));
    assert_eq!(end, Next::Done);
    assert_eq!(
        jobs,
        [
            "switching MIG on on",
            "resetting",
            "switching on all virtual functions of",
            "making the MIG instance 4g.40gb@0 of",
            "making the MIG instance 3g.40gb@4 of",
        ]
    );
    let mut hopper = Host::new(false);
    assert_eq!(hopper.bring(Target::Shape(&layout)).0.len(), 4, "no reset");
    // From MIG to vGPUs, and back to one piece.
    let (jobs, end) = ampere.bring(Target::Shape(&VGPU));
    assert_eq!(end, Next::Done);
    assert_eq!(
        jobs,
        [
            "removing the MIG instance 4g.40gb@0 of",
            "removing the MIG instance 3g.40gb@4 of",
            "switching off the virtual functions of",
            "switching MIG off on",
            "resetting",
            "switching on all virtual functions of",
        ]
    );
    assert_eq!(ampere.bring(Target::Whole), (vec!["switching off the virtual functions of".to_owned()], Next::Done));
    assert_eq!(ampere.bring(Target::Whole), (vec![], Next::Done));
}

/// After a restart of the host an Ampere card has its mode and nothing else, a Hopper card nothing at all.
#[test]
fn a_restart_is_made_good_from_wherever_it_left_the_card() {
    let layout = mig(Some(&["1g.10gb@6:1"]));
    for needs_reset in [true, false] {
        let mut host = Host::new(needs_reset);
        host.bring(Target::Shape(&layout));
        host.vfs.clear();
        host.card.sriov.as_mut().unwrap().enabled = 0;
        host.mig().instances.clear();
        host.mig().is_on = needs_reset;
        host.mig().is_on_pending = needs_reset;
        assert_eq!(host.bring(Target::Shape(&layout)).1, Next::Done);
        assert_eq!((host.vfs.len(), host.mig().instances.len()), (2, 1));
    }
}

/// Each of them killed at every job: what is left is finished by the next.
#[test]
fn every_order_of_kills_ends_the_same() {
    let layout = mig(Some(&["2g.20gb@0:2", "2g.20gb@2:2", "3g.40gb@4:4"]));
    let targets = [Target::Shape(&VGPU), Target::Shape(&layout), Target::Whole, Target::Shape(&layout)];
    for stop in 0..6 {
        let mut host = Host::new(stop % 2 == 0);
        for target in targets {
            for _ in 0..stop {
                if let Next::Do(job) = host.next(target) {
                    host.take(&job);
                }
            }
        }
        assert_eq!(host.bring(Target::Shape(&layout)).1, Next::Done, "{stop}");
        let mut there: Vec<String> = host.mig().instances.iter().map(|made| made.instance.to_string()).collect();
        there.sort();
        assert_eq!(there, ["2g.20gb@0", "2g.20gb@2", "3g.40gb@4"]);
    }
}

#[test]
fn nothing_that_is_used_is_touched() {
    let mut host = Host::new(false);
    host.bring(Target::Shape(&mig(Some(&["3g.40gb@0:4", "3g.40gb@4:4"]))));
    let made = MadeVgpu { uuid: None, type_id: "701".to_owned(), name: None, gpu_instance: Some(2) };
    host.vfs[1].vgpu.as_mut().unwrap().made.push(made);
    let (jobs, end) = host.bring(Target::Shape(&mig(Some(&["7g.80gb@0:8"]))));
    assert_eq!(jobs, [""; 0], "what is idle stays as well, where it would be in vain");
    insta::assert_debug_snapshot!(end, @r#"
    Stop(
        "the MIG instance 3g.40gb@4 is in use by a vGPU on 0000:41:00.5",
    )
    "#);
    assert!(matches!(host.next(Target::Shape(&VGPU)), Next::Stop(_)));
    assert!(matches!(host.next(Target::Whole), Next::Stop(_)));
    assert_eq!(host.next(Target::Shape(&mig(None))), Next::Done, "on demand, whatever is there");
}

/// Cases B-mig-on-but-empty and B-capacity-zero-while-passthrough: the answer says why, and nothing is done.
#[test]
fn what_cannot_be_is_told_and_what_comes_is_waited_for() {
    let told = |change: &dyn Fn(&mut Card), shape: &Shape| {
        let mut host = Host::new(false);
        change(&mut host.card);
        match host.next(Target::Shape(shape)) {
            Next::Wait(why) => format!("wait: {why}"),
            Next::Stop(why) => format!("stop: {}", why.split(':').next().unwrap()),
            other => format!("{other:?}"),
        }
    };
    let on_demand = mig(None);
    assert_eq!(told(&|card| card.nvml = None, &on_demand), "wait: NVML does not tell of it yet");
    assert_eq!(told(&|card| card.driver = None, &VGPU), "wait: no driver has taken it yet");
    assert_eq!(told(&|card| card.nvml.as_mut().unwrap().mig = None, &on_demand), "stop: the card has no MIG");
    assert_eq!(
        told(&|card| card.nvml.as_mut().unwrap().host_vgpu = None, &on_demand),
        "stop: its driver makes no vGPUs"
    );
    // What NVML failed to tell is not what the card lacks; a look that failed is no card that does not answer.
    for lacking in [
        |card: &mut Card| card.nvml.as_mut().unwrap().mig = None,
        |card: &mut Card| {
            card.nvml.as_mut().unwrap().host_vgpu = None;
        },
    ] {
        let change = |card: &mut Card| {
            lacking(card);
            card.nvml.as_mut().unwrap().faults.push("MIG mode: Unknown".to_owned());
        };
        assert_eq!(told(&change, &on_demand), "wait: NVML does not say all of it: MIG mode: Unknown");
    }
    assert_eq!(told(&|card| card.health = Health::Unknown("x".to_owned()), &VGPU), "wait: x");
    assert_eq!(told(&|card| card.health = Health::Dropped("x".to_owned()), &VGPU), "wait: x");
    let others = |card: &mut Card| (card.vendor, card.nvml, card.sriov) = (Vendor::Amd, None, None);
    let text = told(&others, &VGPU);
    assert!(text.starts_with("stop: this card of amd has no virtual functions that go to machines"), "{text}");
    assert_eq!(told(&|card| card.is_vfio = true, &VGPU), "stop: it is with nvidia; only its own driver divides it");
    assert_eq!(told(&|card| card.health = Health::NoAnswer("x".to_owned()), &VGPU), "stop: it does not answer");
    let late = |card: &mut Card| {
        card.sriov.as_mut().unwrap().enabled = 2;
    };
    assert_eq!(told(&late, &VGPU), "wait: 0 of 2 virtual functions have come");
    let mut host = Host::new(false);
    host.bring(Target::Shape(&VGPU));
    host.vfs[1].driver = None;
    assert_eq!(host.next(Target::Shape(&VGPU)), Next::Wait("no driver has taken 0000:41:00.5 yet".to_owned()));
    host.vfs[1].driver = Some("nvidia".to_owned());
    host.vfs.iter_mut().for_each(|vf| vf.vgpu = None);
    assert!(matches!(host.next(Target::Shape(&VGPU)), Next::Wait(why) if why.contains("nvidia-vgpud")));
}
