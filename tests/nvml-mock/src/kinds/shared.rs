//! Cards that are shared by time alone.

use super::{Family, Kind, types};

pub(super) fn l40s() -> Kind {
    let by_time = [
        ("1Q", 1, 32),
        ("2Q", 2, 24),
        ("3Q", 3, 16),
        ("4Q", 4, 12),
        ("6Q", 6, 8),
        ("8Q", 8, 6),
        ("12Q", 12, 4),
        ("16Q", 16, 3),
        ("24Q", 24, 2),
        ("48Q", 48, 1),
        ("4A", 4, 12),
        ("12A", 12, 4),
    ];
    Kind {
        key: "L40S",
        name: "NVIDIA L40S",
        device: 0x26b9,
        subsystem: (0x10de, 0x1851),
        memory_mib: 46_068,
        family: Family::Ada,
        functions: 32,
        profiles: Vec::new(),
        types: types(1148, "L40S", &by_time, &[]),
    }
}

pub(super) fn a16() -> Kind {
    let by_time = [
        ("1Q", 1, 16),
        ("2Q", 2, 8),
        ("4Q", 4, 4),
        ("4C", 4, 4),
        ("8Q", 8, 2),
        ("8C", 8, 2),
        ("16Q", 16, 1),
        ("16C", 16, 1),
    ];
    Kind {
        key: "A16",
        name: "NVIDIA A16",
        device: 0x25b6,
        subsystem: (0x10de, 0x14a9),
        memory_mib: 15_356,
        family: Family::Ampere,
        // [U]
        functions: 16,
        profiles: Vec::new(),
        types: types(710, "A16", &by_time, &[]),
    }
}

pub(super) fn a2() -> Kind {
    let by_time = [
        ("1B", 1, 16),
        ("2B", 2, 8),
        ("1Q", 1, 16),
        ("2Q", 2, 8),
        ("4Q", 4, 4),
        ("8Q", 8, 2),
        ("16Q", 16, 1),
        ("1A", 1, 16),
        ("2A", 2, 8),
        ("4A", 4, 4),
        ("8A", 8, 2),
        ("16A", 16, 1),
        ("4C", 4, 4),
        ("8C", 8, 2),
        ("16C", 16, 1),
    ];
    Kind {
        key: "A2",
        name: "NVIDIA A2",
        device: 0x25b6,
        subsystem: (0x10de, 0x157e),
        memory_mib: 15_356,
        family: Family::Ampere,
        // [U]
        functions: 16,
        profiles: Vec::new(),
        types: types(742, "A2", &by_time, &[]),
    }
}

pub(super) fn t4() -> Kind {
    let by_time = [("1Q", 1, 16), ("2Q", 2, 8), ("4Q", 4, 4), ("8Q", 8, 2), ("16Q", 16, 1)];
    Kind {
        key: "T4",
        name: "Tesla T4",
        device: 0x1eb8,
        subsystem: (0x10de, 0x12a2),
        memory_mib: 15_360,
        family: Family::Turing,
        functions: 0,
        profiles: Vec::new(),
        types: types(222, "T4", &by_time, &[]),
    }
}
