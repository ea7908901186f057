//! Images, disks and seeds: files that machines stand on.
