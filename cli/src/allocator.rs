//! The global allocator: mimalloc for short blocks, own memory mappings for long ones.
//!
//! Bodies, frames and replies are allocated on one thread and freed on another. The system's allocator is
//! slow at this. mimalloc returns a long block that another thread frees only when the allocating thread
//! allocates again. A daemon whose clients never read their long replies would keep most of that memory after
//! the clients are gone. A block of [`LONG_BYTES`] or more therefore goes back to the system at once,
//! whichever thread frees it.
#![expect(unsafe_code, reason = "an allocator is unsafe by nature; this file holds nothing else")]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;

use mimalloc::MiMalloc;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
#[cfg(target_os = "linux")]
use rustix::mm::{MremapFlags, mremap};

/// Blocks of at least this length are own mappings: a page fault for each page costs little beside filling
/// the page.
const LONG_BYTES: usize = 2 << 20;
/// Pages are aligned to at least this on every system; mimalloc allocates blocks with a larger alignment.
const PAGE_BYTES: usize = 4096;

/// The global allocator of the program.
pub(crate) struct Allocator;

fn is_long(bytes: usize, align: usize) -> bool {
    bytes >= LONG_BYTES && align <= PAGE_BYTES
}

/// Maps zeroed pages; null if the system has none.
fn map_pages(bytes: usize) -> *mut u8 {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new anonymous mapping at an address that the system chooses overlaps no existing memory.
    unsafe { mmap_anonymous(null_mut(), bytes, protection, flags) }.map_or(null_mut(), |at| at.cast())
}

// SAFETY: `is_long` decides by a layout's length and alignment alone, and all calls use it, so each block is
// freed by the allocator that made it. Pages are aligned to `PAGE_BYTES` and hold at least the requested
// bytes. `realloc` keeps the bytes that both lengths share, by `mremap` or by a copy.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_long(layout.size(), layout.align()) {
            true => map_pages(layout.size()),
            // SAFETY: the caller's contract is passed on.
            false => unsafe { MiMalloc.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_long(layout.size(), layout.align()) {
            true => map_pages(layout.size()),
            // SAFETY: the caller's contract is passed on.
            false => unsafe { MiMalloc.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_long(layout.size(), layout.align()) {
            // SAFETY: the block is a mapping of this length, and the caller uses it no more. A failed unmap
            // leaves it mapped.
            let _ = unsafe { munmap(block.cast(), layout.size()) };
        } else {
            // SAFETY: the caller's contract is passed on.
            unsafe { MiMalloc.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        match (is_long(layout.size(), layout.align()), is_long(bytes, layout.align())) {
            // SAFETY: the caller's contract is passed on.
            (false, false) => unsafe { MiMalloc.realloc(block, layout, bytes) },
            // Other systems copy the block, as below. SAFETY: the block is a mapping of this length, which
            // may move. If it cannot grow, it stays unchanged.
            #[cfg(target_os = "linux")]
            (true, true) => unsafe {
                mremap(block.cast(), layout.size(), bytes, MremapFlags::MAYMOVE)
                    .map_or(null_mut(), |at| at.cast())
            },
            // SAFETY: the new layout is valid by the caller's contract. The two blocks are distinct, and both
            // are at least as long as the copy.
            _ => unsafe {
                let moved = self.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
                if !moved.is_null() {
                    std::ptr::copy_nonoverlapping(block, moved, layout.size().min(bytes));
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks grow and shrink across `LONG_BYTES`: their content stays, and a zeroed block is zero.
    #[test]
    fn realloc_across_long_limit_keeps_bytes() {
        for align in [1, 16, PAGE_BYTES, 2 * PAGE_BYTES] {
            let mut bytes = 1000;
            // SAFETY: each block is used within its length, and freed once with its own layout.
            unsafe {
                let mut block = Allocator.alloc_zeroed(Layout::from_size_align(bytes, align).unwrap());
                for (place, number) in (0..bytes).zip((0..251u8).cycle()) {
                    assert_eq!(block.add(place).read(), 0);
                    block.add(place).write(number);
                }
                for to in [LONG_BYTES - 1, LONG_BYTES, 3 * LONG_BYTES + 5, LONG_BYTES, LONG_BYTES - 1, 1000] {
                    block = Allocator.realloc(block, Layout::from_size_align(bytes, align).unwrap(), to);
                    assert!(!block.is_null() && block.addr().is_multiple_of(align));
                    bytes = to;
                    block.add(to - 1).write(block.add(to - 1).read());
                    for (place, number) in (0..1000).zip((0..251u8).cycle()).take(to - 1) {
                        assert_eq!(block.add(place).read(), number, "{place} of {to}, aligned to {align}");
                    }
                }
                Allocator.dealloc(block, Layout::from_size_align(bytes, align).unwrap());
            }
        }
    }

    #[test]
    fn impossible_allocation_returns_null() {
        let layout = Layout::from_size_align(isize::MAX as usize - PAGE_BYTES, 1).unwrap();
        // SAFETY: the layout is valid, and the block is not used.
        assert!(unsafe { Allocator.alloc(layout) }.is_null());
    }
}
