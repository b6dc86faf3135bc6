//! The C library's own functions, which the hooks of both libraries stand before.

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The C library's own function of a name, looked up once.
pub(crate) struct CFunction {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl CFunction {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The function, by `find` if it is not yet known. Null if `find` gives none.
    pub(crate) fn get(&self, find: impl FnOnce(&CStr) -> *mut c_void) -> *mut c_void {
        let found = self.found.load(Ordering::Acquire);
        if !found.is_null() {
            return found;
        }
        let found = find(self.name);
        self.found.store(found, Ordering::Release);
        found
    }
}

/// The C library's own function, cast to this type, if it exists. Unsafe like any such cast. The module that
/// uses it has a function `find`, which looks a name up.
macro_rules! real {
    ($name:literal, fn($($argument:ty),*) -> $result:ty) => {{
        static REAL: $crate::c_function::CFunction = $crate::c_function::CFunction::new($name);
        // The C library's function of this name has this type, or the pointer is null.
        core::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($argument),*) -> $result>>(REAL.get(find))
    }};
}
pub(crate) use real;
