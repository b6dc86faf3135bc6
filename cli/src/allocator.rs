//! Memory of the program: short blocks are mimalloc's, long ones pages of their own.
//!
//! Bodies, frames and replies are allocated on one thread and let go on another, which the system's allocator does slowly. mimalloc gives a long
//! block that another thread lets go back only when the thread that had allocated it allocates again: a daemon whose clients never read their long
//! replies kept most of them after those had gone. So from [`LONG_BYTES`] on a block is the system's again at once, whoever lets it go.
#![expect(unsafe_code, reason = "an allocator is unsafe by nature; this file holds nothing else")]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;

use mimalloc::MiMalloc;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// From this length on a block is pages of its own: what they cost (a fault for each) is little beside filling them.
const LONG_BYTES: usize = 2 << 20;
/// No alignment that is asked for is greater than a page's, on any system.
const PAGE_BYTES: usize = 4096;

/// See the module.
pub(crate) struct Allocator;

fn is_long(bytes: usize, align: usize) -> bool {
    bytes >= LONG_BYTES && align <= PAGE_BYTES
}

/// Pages, all zeros; null where there are none.
fn pages(bytes: usize) -> *mut u8 {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new anonymous mapping at a place that the system chooses touches nothing that is there.
    unsafe { mmap_anonymous(null_mut(), bytes, protection, flags) }.map_or(null_mut(), |at| at.cast())
}

// SAFETY: length and alignment of a layout alone decide whose a block is, in all of the calls alike, so each is let go by whoever gave it. Pages are
// aligned to `PAGE_BYTES` and hold as many bytes as were asked for; `realloc` keeps what both lengths have, by the system or by a copy.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_long(layout.size(), layout.align()) {
            true => pages(layout.size()),
            // SAFETY: the caller's promise is handed on.
            false => unsafe { MiMalloc.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_long(layout.size(), layout.align()) {
            true => pages(layout.size()),
            // SAFETY: the caller's promise is handed on.
            false => unsafe { MiMalloc.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_long(layout.size(), layout.align()) {
            // SAFETY: the block is a mapping of this length, which nobody uses any more. That a part of it cannot be unmapped would leave it mapped.
            let _ = unsafe { munmap(block.cast(), layout.size()) };
        } else {
            // SAFETY: the caller's promise is handed on.
            unsafe { MiMalloc.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        match (is_long(layout.size(), layout.align()), is_long(bytes, layout.align())) {
            // SAFETY: the caller's promise is handed on.
            (false, false) => unsafe { MiMalloc.realloc(block, layout, bytes) },
            // SAFETY: the block is a mapping of this length, which may move; where it cannot grow it stays as it is.
            (true, true) => unsafe {
                mremap(block.cast(), layout.size(), bytes, MremapFlags::MAYMOVE)
                    .map_or(null_mut(), |at| at.cast())
            },
            // SAFETY: the new layout is valid, since the caller promises so of its length; the blocks are two, and both hold what is copied.
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
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Blocks of every kind grow and shrink over the border and back; what was in them is there, and what is new of a zeroed one is zero.
    #[test]
    fn blocks_keep_their_bytes_over_the_border_and_back() {
        for align in [1, 16, PAGE_BYTES, 2 * PAGE_BYTES] {
            let mut bytes = 1000;
            // SAFETY: each block is used within its length, let go once, and with the layout that it has.
            unsafe {
                let mut block = Allocator.alloc_zeroed(Layout::from_size_align(bytes, align).unwrap());
                for (place, number) in (0..bytes).zip((0..251u8).cycle()) {
                    assert_eq!(block.add(place).read(), 0);
                    block.add(place).write(number);
                }
                for to in [LONG_BYTES - 1, LONG_BYTES, 3 * LONG_BYTES + 5, LONG_BYTES, LONG_BYTES - 1, 1000] {
                    block = Allocator.realloc(block, Layout::from_size_align(bytes, align).unwrap(), to);
                    assert!(!block.is_null() && block.addr() % align == 0);
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
    fn what_no_system_has_is_null() {
        let layout = Layout::from_size_align(isize::MAX as usize - PAGE_BYTES, 1).unwrap();
        // SAFETY: the layout is valid, and nothing is done with the block.
        assert!(unsafe { Allocator.alloc(layout) }.is_null());
    }
}
