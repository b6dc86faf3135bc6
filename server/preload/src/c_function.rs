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

/// Defines the functions that start programs: each calls the C library's own one through `$start`, which
/// takes the program, its environment, and a function that starts it with another environment. `$symbols` is
/// the configuration in which they have the C library's names.
macro_rules! exec_hooks {
    ($symbols:ident, $start:path) => {
        #[cfg_attr($symbols, unsafe(no_mangle))]
        pub unsafe extern "C" fn execve(
            path: *const c_char,
            arguments: CStringList,
            environment: CStringList,
        ) -> c_int {
            // SAFETY: promised by the caller.
            unsafe {
                let real = real!(c"execve", fn(*const c_char, CStringList, CStringList) -> c_int);
                $start(path, environment, |list| real.map_or(-1, |real| real(path, arguments, list)))
            }
        }

        #[cfg_attr($symbols, unsafe(no_mangle))]
        pub unsafe extern "C" fn execv(path: *const c_char, arguments: CStringList) -> c_int {
            // SAFETY: promised by the caller.
            unsafe { execve(path, arguments, sys::environ) }
        }

        #[cfg_attr($symbols, unsafe(no_mangle))]
        pub unsafe extern "C" fn execvpe(
            file: *const c_char,
            arguments: CStringList,
            environment: CStringList,
        ) -> c_int {
            // SAFETY: promised by the caller.
            unsafe {
                let real = real!(c"execvpe", fn(*const c_char, CStringList, CStringList) -> c_int);
                $start(file, environment, |list| real.map_or(-1, |real| real(file, arguments, list)))
            }
        }

        #[cfg_attr($symbols, unsafe(no_mangle))]
        pub unsafe extern "C" fn execvp(file: *const c_char, arguments: CStringList) -> c_int {
            // SAFETY: promised by the caller.
            unsafe { execvpe(file, arguments, sys::environ) }
        }

        $crate::c_function::spawn_hook!($symbols, $start, posix_spawn, c"posix_spawn");
        $crate::c_function::spawn_hook!($symbols, $start, posix_spawnp, c"posix_spawnp");
    };
}
pub(crate) use exec_hooks;

/// Defines one form of `posix_spawn`; see [`exec_hooks`].
macro_rules! spawn_hook {
    ($symbols:ident, $start:path, $name:ident, $text:literal) => {
        #[cfg_attr($symbols, unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            process: *mut c_int,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: CStringList,
            environment: CStringList,
        ) -> c_int {
            type Pointer = *const c_void;
            // SAFETY: promised by the caller. ENOSYS is 38.
            unsafe {
                let real = real!(
                    $text,
                    fn(*mut c_int, *const c_char, Pointer, Pointer, CStringList, CStringList) -> c_int
                );
                $start(path, environment, |list| {
                    real.map_or(38, |real| real(process, path, actions, attributes, arguments, list))
                })
            }
        }
    };
}
pub(crate) use spawn_hook;
