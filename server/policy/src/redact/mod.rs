//! Removes secrets before anything is stored: values of secret headers and query keys always, named secrets
//! in bodies on request.
//!
//! Removed values become [`PLACEHOLDER`], which is the same in every recording and unsalted, so that two
//! recordings of one program stay equal. A replay matches requests by a keyed hash of the original, which is
//! computed elsewhere.

mod address;
mod arguments;
mod events;
mod forms;
mod headers;
mod secrets;
mod stream;
#[cfg(test)]
mod tests;

pub use crate::secret_names::is_secret_key;
pub use address::{redact_target, redact_url};
pub use arguments::MaskedArgument;
pub use arguments::{mask_arguments, unmask_arguments};
pub use headers::{is_credential_header, redact_headers};
pub use secrets::{RedactedBytes, RefusedSecret, SECRET_BYTES_MIN, SECRETS_MAX, Secrets};
pub use stream::RedactingReader;

/// The replacement for a secret: unescaped in a header, an address, JSON and base64 alike.
pub const PLACEHOLDER: &str = "annals-redacted";
