//! Cards that MIG can divide.

use super::{Family, Kind, Profile, VgpuType, large, types};

pub(super) fn a100_40() -> Kind {
    let profiles = large(
        "1g.5gb+me",
        [
            ("1g.5gb", 4864),
            ("1g.10gb", 9856),
            ("2g.10gb", 9856),
            ("3g.20gb", 19_968),
            ("4g.20gb", 19_968),
            ("7g.40gb", 40_192),
        ],
    );
    let by_time = [("4C", 4, 10), ("5C", 5, 8), ("8C", 8, 5), ("10C", 10, 4), ("20C", 20, 2), ("40C", 40, 1)];
    let by_mig = [
        ("1-5C", 5, 19, 7),
        ("1-5CME", 5, 20, 1),
        ("1-10C", 10, 15, 4),
        ("2-10C", 10, 14, 3),
        ("3-20C", 20, 9, 2),
        ("4-20C", 20, 5, 1),
        ("7-40C", 40, 0, 1),
    ];
    Kind {
        key: "A100-40",
        name: "NVIDIA A100-PCIE-40GB",
        device: 0x20f1,
        subsystem: (0x10de, 0x145f),
        memory_mib: 40_960,
        family: Family::Ampere,
        // [U]
        functions: 16,
        profiles,
        types: types(460, "A100", &by_time, &by_mig),
    }
}

pub(super) fn a100_80() -> Kind {
    let profiles = large(
        "1g.10gb+me",
        [
            ("1g.10gb", 9856),
            ("1g.20gb", 19_968),
            ("2g.20gb", 19_968),
            ("3g.40gb", 40_192),
            ("4g.40gb", 40_192),
            ("7g.80gb", 80_384),
        ],
    );
    let by_time =
        [("4C", 4, 20), ("8C", 8, 10), ("10C", 10, 8), ("16C", 16, 5), ("20C", 20, 4), ("40C", 40, 2), ("80C", 80, 1)];
    let by_mig = [
        ("1-10C", 10, 19, 7),
        ("2-20C", 20, 14, 3),
        ("3-40C", 40, 9, 2),
        ("4-40C", 40, 5, 1),
        ("7-80C", 80, 0, 1),
        // The next two numbers: [U].
        ("1-20C", 20, 15, 4),
    ];
    let mut types = types(692, "A100D", &by_time, &by_mig);
    types.push(VgpuType {
        id: 707,
        name: "NVIDIA A100D-1-10CME".to_owned(),
        memory_gib: 10,
        most: 1,
        profile: Some(20),
        per_instance: 1,
    });
    Kind {
        key: "A100-80",
        name: "NVIDIA A100 80GB PCIe",
        device: 0x20b5,
        subsystem: (0x10de, 0x1533),
        memory_mib: 81_920,
        family: Family::Ampere,
        // [U]
        functions: 20,
        profiles,
        types,
    }
}

pub(super) fn h100() -> Kind {
    // MiB of the instances: [U], known in hundredths of GiB only.
    let profiles = large(
        "1g.10gb+me",
        [
            ("1g.10gb", 9984),
            ("1g.20gb", 20_090),
            ("2g.20gb", 20_090),
            ("3g.40gb", 40_448),
            ("4g.40gb", 40_448),
            ("7g.80gb", 81_152),
        ],
    );
    let by_time = [
        ("4C", 4, 20),
        ("5C", 5, 16),
        ("8C", 8, 10),
        ("10C", 10, 8),
        ("16C", 16, 5),
        ("20C", 20, 4),
        ("40C", 40, 2),
        ("80C", 80, 1),
    ];
    let by_mig = [
        ("1-10C", 10, 19, 7),
        ("1-10CME", 10, 20, 1),
        ("1-20C", 20, 15, 4),
        ("2-20C", 20, 14, 3),
        ("3-40C", 40, 9, 2),
        ("4-40C", 40, 5, 1),
        ("7-80C", 80, 0, 1),
    ];
    Kind {
        key: "H100",
        name: "NVIDIA H100 PCIe",
        device: 0x2331,
        subsystem: (0x10de, 0x1626),
        memory_mib: 81_559,
        family: Family::Hopper,
        // [U]
        functions: 20,
        profiles,
        types: types(820, "H100", &by_time, &by_mig),
    }
}

pub(super) fn h200() -> Kind {
    // MiB of the instances: [U], made from their names.
    let profiles = large(
        "1g.18gb+me",
        [
            ("1g.18gb", 17_166),
            ("1g.35gb", 33_378),
            ("2g.35gb", 33_378),
            ("3g.71gb", 67_710),
            ("4g.71gb", 67_710),
            ("7g.141gb", 134_468),
        ],
    );
    let by_time = [
        ("4C", 4, 32),
        ("7C", 7, 20),
        ("8C", 8, 16),
        ("14C", 14, 10),
        ("17C", 17, 8),
        ("28C", 28, 5),
        ("35C", 35, 4),
        ("70C", 70, 2),
        ("141C", 141, 1),
    ];
    let by_mig = [
        ("1-18C", 18, 19, 7),
        ("1-35C", 35, 15, 4),
        ("2-35C", 35, 14, 3),
        ("3-71C", 71, 9, 2),
        ("4-71C", 71, 5, 1),
        ("7-141C", 141, 0, 1),
    ];
    Kind {
        key: "H200",
        name: "NVIDIA H200 NVL",
        device: 0x233b,
        subsystem: (0x10de, 0x1996),
        memory_mib: 143_771,
        family: Family::Hopper,
        // [U]
        functions: 32,
        profiles,
        types: types(1400, "H200", &by_time, &by_mig),
    }
}

pub(super) fn rtx_pro_6000() -> Kind {
    // Placements, ids and memory: [U]. Which instances carry which types: [U].
    let row = |number, id, name, slices, size, starts, most, memory_mib| Profile {
        number,
        id,
        name,
        slices,
        size,
        starts,
        most,
        memory_mib,
    };
    let (one, two): (&'static [u32], &'static [u32]) = (&[0, 1, 2, 3], &[0, 2]);
    let profiles = vec![
        row(0, 14, "1g.24gb", 1, 1, one, 4, 24_192),
        row(1, 5, "2g.48gb", 2, 2, two, 2, 48_512),
        row(3, 0, "4g.96gb", 4, 4, &[0], 1, 97_280),
        row(7, 21, "1g.24gb+me", 1, 1, one, 1, 24_192),
        row(10, 47, "1g.24gb+gfx", 1, 1, one, 4, 24_192),
        row(11, 35, "2g.48gb+gfx", 2, 2, two, 2, 48_512),
        row(12, 32, "4g.96gb+gfx", 4, 4, &[0], 1, 97_280),
        row(13, 67, "1g.24gb-me", 1, 1, one, 4, 24_192),
        row(15, 65, "1g.24gb+me.all", 1, 1, one, 1, 24_192),
    ];
    let by_time = [
        ("3Q", 3, 32),
        ("4Q", 4, 24),
        ("6Q", 6, 16),
        ("8Q", 8, 12),
        ("12Q", 12, 8),
        ("16Q", 16, 6),
        ("24Q", 24, 4),
        ("32Q", 32, 3),
        ("48Q", 48, 2),
        ("96Q", 96, 1),
    ];
    let by_mig = [
        ("1-24Q", 24, 47, 4),
        ("2-48Q", 48, 35, 2),
        ("4-96Q", 96, 32, 1),
        ("1-2Q", 2, 47, 48),
        ("1-4Q", 4, 47, 24),
        ("1-12Q", 12, 47, 8),
        ("2-24Q", 24, 35, 4),
        ("4-48Q", 48, 32, 2),
    ];
    let mut types = types(1550, "RTX Pro 6000 Blackwell DC", &by_time, &by_mig);
    for kind in &mut types {
        // Several share an instance by time.
        let profile = profiles.iter().find(|profile| Some(profile.id) == kind.profile);
        kind.per_instance = profile.map_or(1, |profile| kind.most / profile.most);
    }
    Kind {
        key: "RTX-PRO-6000",
        name: "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        device: 0x2bb5,
        subsystem: (0x10de, 0x204e),
        memory_mib: 97_887,
        family: Family::Blackwell,
        functions: 48,
        profiles,
        types,
    }
}

pub(super) fn a30() -> Kind {
    // Ids and placements: [U], two published tables contradict each other.
    let row = |number, id, name, slices, size, starts, most, memory_mib| Profile {
        number,
        id,
        name,
        slices,
        size,
        starts,
        most,
        memory_mib,
    };
    let (one, two): (&'static [u32], &'static [u32]) = (&[0, 1, 2, 3], &[0, 2]);
    let profiles = vec![
        row(0, 14, "1g.6gb", 1, 1, one, 4, 5836),
        row(1, 5, "2g.12gb", 2, 2, two, 2, 11_672),
        row(3, 0, "4g.24gb", 4, 4, &[0], 1, 23_344),
        row(7, 21, "1g.6gb+me", 1, 1, one, 1, 5836),
        row(8, 6, "2g.12gb+me", 2, 2, two, 1, 11_672),
    ];
    let by_time = [("4C", 4, 6), ("6C", 6, 4), ("8C", 8, 3), ("12C", 12, 2), ("24C", 24, 1)];
    let by_mig = [("1-6C", 6, 14, 4), ("2-12C", 12, 5, 2), ("4-24C", 24, 0, 1)];
    Kind {
        key: "A30",
        name: "NVIDIA A30",
        device: 0x20b7,
        subsystem: (0x10de, 0x1532),
        memory_mib: 24_576,
        family: Family::Ampere,
        // [U]
        functions: 16,
        profiles,
        types: types(640, "A30", &by_time, &by_mig),
    }
}
