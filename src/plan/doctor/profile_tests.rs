use super::super::tests::{Case, told, well_formed};
use super::*;
use crate::model::caps::Caps;
use crate::model::gpu::{GpuDevice, GpuId, LeaseState};
use crate::model::host::kernel::Iommu;
use crate::model::units::Mib;
use crate::plan::place::{self, Held, Holder};

fn profile(gpu: &str) -> Profile {
    Profile {
        name: "ubuntu-cuda".parse().unwrap(),
        description: String::new(),
        image: Some("ubuntu-24.04".parse().unwrap()),
        boot: Boot::Uefi,
        vcpus: 8,
        memory: Mib(32 << 10),
        disk: Mib(100 << 10),
        gpus: if gpu.is_empty() { Vec::new() } else { vec![gpu.parse().unwrap()] },
        caps: Caps::default(),
        tpm: false,
        secure_boot: false,
        graphics: false,
        ttl: None,
        guest_user: None,
        user_data: None,
        allow: Vec::new(),
    }
}

fn device(bus: u8, model: &str) -> GpuDevice {
    let bdf = format!("0000:{bus:02x}:00.0").parse().unwrap();
    GpuDevice::new(GpuId(format!("GPU-{bus}")), bdf, model, Mib(80 << 10))
}

/// What is told of a profile on a sound host with these cards.
fn check(
    profile: &Profile,
    cards: &[GpuDevice],
    held: &Held,
    change: impl FnOnce(&mut Case, &mut Admission),
) -> String {
    let mut case = Case::sound();
    let mut admission = Admission {
        image: Ok(profile.image.as_ref().map(ToString::to_string)),
        shape: Ok(()),
        quota: Ok(()),
        capacity: Ok(()),
        gpus: place::pick(&profile.gpus, cards, held),
    };
    change(&mut case, &mut admission);
    let findings = examine_for(&ProfilePatient { host: case.patient(), profile, admission: &admission });
    well_formed(&findings);
    told(findings.iter())
}

/// The lines of it that are not well.
fn unwell(profile: &Profile, change: impl FnOnce(&mut Case, &mut Admission)) -> String {
    let told = check(profile, &[device(0x41, "NVIDIA A100")], &Held::new(), change);
    let lines: Vec<&str> = told.lines().filter(|line| !line.starts_with("ok ")).collect();
    lines.join("\n") + "\n"
}

#[test]
fn a_profile_is_told_what_it_needs_and_nothing_else() {
    let cards = [device(0x41, "NVIDIA A100")];
    insta::assert_snapshot!(check(&profile("a100"), &cards, &Held::new(), |_, _| {}));
    let plain = check(&profile(""), &[], &Held::new(), |case, _| case.host.has_sfq = Some(false));
    let words: Vec<&str> = plain.lines().filter_map(|line| line.strip_prefix("ok ")?.split(':').next()).collect();
    insta::assert_snapshot!(words.join(" "), @"profile root kvm libvirt qemu programs firmware space permissions resolver subnet images shape quota capacity");
}

#[test]
fn what_a_profile_lacks_has_its_command() {
    let mut all = String::new();
    let mut add = |what: &str, found: String| all.push_str(&format!("# {what}\n{found}"));
    let refusal = |message: &str, hint: &str| Refusal { message: message.to_owned(), hint: Some(hint.to_owned()) };
    let cuda = profile("1");
    let no_image = refusal("there is no image ubuntu-24.04 in the catalogue", "see `gvm image list`");
    add("no image", unwell(&cuda, |_, a| a.image = Err(no_image.clone())));
    let tiny = Profile { image: Some("tiny".parse().unwrap()), ..cuda.clone() };
    add("no image of a recipe", unwell(&tiny, |_, a| a.image = Err(no_image.clone())));
    add("lost image", unwell(&cuda, |c, _| c.lost_images.push("ubuntu-24.04".to_owned())));
    add("no firmware", unwell(&cuda, |c, _| c.host.firmware.has_plain = false));
    add("secure boot and GPU", unwell(&Profile { secure_boot: true, ..cuda.clone() }, |_, _| {}));
    let secure = Profile { secure_boot: true, ..profile("") };
    add("no secure firmware", unwell(&secure, |c, _| c.host.firmware.has_secure_boot = false));
    let tpm = Profile { tpm: true, ..cuda.clone() };
    add("no swtpm", unwell(&tpm, |c, _| drop(c.host.programs.insert("swtpm".to_owned(), None))));
    let capped = Profile { caps: Caps { net_in_bytes_per_sec: Some(1 << 20), ..Caps::default() }, ..cuda.clone() };
    add("no sfq", unwell(&capped, |c, _| c.host.has_sfq = Some(false)));
    add("no sfq and no caps", unwell(&cuda, |c, _| c.host.has_sfq = Some(false)));
    add("space", unwell(&cuda, |c, _| c.host.state_space.as_mut().unwrap().free = Mib(40 << 10)));
    add(
        "shape",
        unwell(&cuda, |_, a| a.shape = Err(refusal("8 CPUs are more than this host has (4)", "use --cpus 4 or fewer"))),
    );
    add("quota", unwell(&cuda, |_, a| a.quota = Err(refusal("over your quota of memory", "raise it"))));
    add("capacity", unwell(&cuda, |_, a| a.capacity = Err(Refusal { message: "no memory".to_owned(), hint: None })));
    add("iommu off", unwell(&cuda, |c, _| c.host.kernel.iommu = Some(Iommu::default())));
    add("cards unknown", unwell(&cuda, |c, _| c.gpus = Err("no answer".to_owned())));
    insta::assert_snapshot!(all);
}

#[test]
fn a_request_that_is_not_met_says_why_and_what_would_do() {
    let mut all = String::new();
    let mut add = |what: &str, request: &str, cards: &[GpuDevice], held: &Held| {
        let told = check(&profile(request), cards, held, |_, _| {});
        let lines: Vec<&str> = told.lines().skip_while(|line| !line.contains("gpu-request")).collect();
        all.push_str(&format!("# {what}\n{}\n", lines.join("\n")));
    };
    let two = [device(0x41, "NVIDIA A100"), device(0x42, "NVIDIA A100")];
    add("granted", "2xa100", &two, &Held::new());
    add("no card", "1", &[], &Held::new());
    add("another model", "h100", &two, &Held::new());
    add("too many", "4", &two, &Held::new());
    let holder = Holder { state: LeaseState::Attached, vm: None };
    let held: Held = two.iter().map(|card| (card.id.clone(), holder.clone())).collect();
    add("all held", "1", &two, &held);
    let blocked = GpuDevice { blocked: Some("MIG is on".to_owned()), ..device(0x41, "NVIDIA A100") };
    add("blocked", "1", &[blocked], &Held::new());
    insta::assert_snapshot!(all);
}
