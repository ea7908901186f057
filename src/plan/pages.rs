//! Huge pages for the memory of a machine with cards, which is pinned as a whole at its start: fewer and larger pages
//! make that quick. They are taken where a pool has enough of them, and never waited for.

use crate::model::host::upkeep::HugePool;
use crate::model::units::Mib;

/// The largest pages that hold so much memory, on the node where it must be; `None` for ordinary pages.
pub fn pick(pools: &[HugePool], node: Option<u32>, memory: Mib) -> Option<Mib> {
    let mut sizes: Vec<u64> = pools.iter().map(|pool| pool.page_kib).filter(|kib| kib % 1024 == 0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let is_enough = |kib: &&u64| {
        let here = |pool: &&HugePool| pool.page_kib == **kib && node.is_none_or(|node| node == pool.node);
        let free: u64 = pools.iter().filter(here).map(|pool| pool.free).fold(0, u64::saturating_add);
        memory.kib() % **kib == 0 && free.saturating_mul(**kib) >= memory.kib()
    };
    sizes.iter().rev().find(is_enough).map(|kib| Mib(kib / 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(node: u32, page_kib: u64, free: u64) -> HugePool {
        HugePool { node, page_kib, total: free + 1, free }
    }

    #[test]
    fn the_largest_pages_that_suffice_on_the_node() {
        let pools = [pool(0, 2048, 4096), pool(0, 1 << 20, 4), pool(1, 1 << 20, 16)];
        let check = |node, mib| pick(&pools, node, Mib(mib)).map(|page| page.0);
        assert_eq!(check(Some(0), 4096), Some(1024));
        assert_eq!(check(Some(0), 8192), Some(2));
        assert_eq!(check(Some(1), 8192), Some(1024));
        assert_eq!(check(None, 20 << 10), Some(1024), "both nodes together");
        assert_eq!(check(Some(0), 3 << 10 | 2), Some(2), "whole pages only");
        assert_eq!(check(Some(0), 16 << 10), None);
        assert_eq!(check(Some(2), 1024), None);
        assert_eq!(pick(&[], None, Mib(1024)), None);
    }
}
