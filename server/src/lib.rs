//! The daemon's crate. It is empty on purpose until the socket server is built: the engine and the command
//! line do not depend on it, and nothing here is promised yet.
