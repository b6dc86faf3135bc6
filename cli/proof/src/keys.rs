//! Ed25519 keys (RFC 8032) in OpenSSL's format: PEM around PKCS#8 (RFC 8410), which is a fixed prefix and 32
//! bytes for these keys.

use std::fmt;

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

use crate::error::ProofError;
use crate::text::{hex, unbase64};

/// SEQUENCE { INTEGER 0, SEQUENCE { OID 1.3.101.112 }, OCTET STRING { OCTET STRING of 32 bytes } }.
const PRIVATE_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// SEQUENCE { SEQUENCE { OID 1.3.101.112 }, BIT STRING of 32 bytes }.
const PUBLIC_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A private key, for signing. Never printed.
pub struct PrivateKey(SigningKey);

/// A public key, for checking signatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(pub [u8; 32]);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl PrivateKey {
    /// A key from PEM, as `openssl genpkey -algorithm ed25519` writes it.
    ///
    /// # Errors
    /// `Malformed` for anything else, including an encrypted key.
    pub fn from_pem(pem: &str) -> Result<Self, ProofError> {
        let wrong =
            "this is not an Ed25519 private key in PEM, as `openssl genpkey -algorithm ed25519` writes it";
        let der = decode_pem(pem, "PRIVATE KEY").ok_or_else(|| ProofError::malformed(wrong))?;
        match der.split_first_chunk::<16>() {
            Some((&PRIVATE_PREFIX, seed)) => {
                let seed: &[u8; 32] = seed.try_into().map_err(|_| ProofError::malformed(wrong))?;
                Ok(Self(SigningKey::from_bytes(seed)))
            }
            _ => Err(ProofError::malformed(wrong)),
        }
    }

    /// The public key of this private key.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// The signature of these bytes.
    #[must_use]
    pub fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        self.0.sign(bytes).to_bytes()
    }
}

impl PublicKey {
    /// A key from PEM, as `openssl pkey -pubout` writes it.
    ///
    /// # Errors
    /// `Malformed` for anything else.
    pub fn from_pem(pem: &str) -> Result<Self, ProofError> {
        let wrong = "this is not an Ed25519 public key in PEM, as `openssl pkey -pubout` writes it";
        let der = decode_pem(pem, "PUBLIC KEY").ok_or_else(|| ProofError::malformed(wrong))?;
        match der.split_first_chunk::<12>() {
            Some((&PUBLIC_PREFIX, key)) => key.try_into().map(Self).map_err(|_| ProofError::malformed(wrong)),
            _ => Err(ProofError::malformed(wrong)),
        }
    }

    /// Whether this key signed these bytes.
    #[must_use]
    pub fn verifies(&self, bytes: &[u8], signature: &[u8; 64]) -> bool {
        // Strict: weak keys and signatures, which are valid for more than one message, are not accepted.
        VerifyingKey::from_bytes(&self.0)
            .and_then(|key| key.verify_strict(bytes, &Signature::from_bytes(signature)))
            .is_ok()
    }
}

/// Decodes the bytes between the marker lines of a PEM file, which may have other text around them.
fn decode_pem(pem: &str, label: &str) -> Option<Vec<u8>> {
    let (_, rest) = pem.split_once(&format!("-----BEGIN {label}-----"))?;
    let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
    unbase64(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{unhex, unhex_exact};

    /// RFC 8410, section 10.3.
    const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC
-----END PRIVATE KEY-----
";
    /// RFC 8410, section 10.1.
    const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
";

    #[test]
    fn rfc_8410_keys_parse_and_sign() {
        let private = PrivateKey::from_pem(PRIVATE).unwrap();
        let public = PublicKey::from_pem(PUBLIC).unwrap();
        assert_eq!(private.public_key(), public);
        let signature = private.sign(b"message");
        assert!(public.verifies(b"message", &signature));
        assert!(!public.verifies(b"massage", &signature));
        for bit in 0..512 {
            let mut other = signature;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!public.verifies(b"message", &other), "bit {bit}");
        }
        assert!(!format!("{private:?}").contains("d4ee72"));
    }

    /// RFC 8032, section 7.1, test 2.
    #[test]
    fn rfc_8032_vector_gives_its_signature() {
        let seed = unhex_exact("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb").unwrap();
        let key = PrivateKey(SigningKey::from_bytes(&seed));
        assert_eq!(
            key.public_key().to_string(),
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
        );
        let wanted = "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
                      085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00";
        assert_eq!(key.sign(&[0x72]).to_vec(), unhex(wanted).unwrap());
    }

    #[test]
    fn invalid_keys_are_refused() {
        for wrong in [
            "",
            "x",
            PUBLIC,
            &PRIVATE.replace("MC4C", "MC8C"),
            &PRIVATE.replace("VhC", "Vg="),
            "-----BEGIN PRIVATE KEY-----",
        ] {
            assert!(matches!(PrivateKey::from_pem(wrong), Err(ProofError::Malformed(_))), "{wrong}");
        }
        assert!(PublicKey::from_pem(PRIVATE).is_err());
        assert!(PublicKey::from_pem(&PUBLIC.replace("MCow", "MCow MCow")).is_err());
        // With a point of small order as key, one signature fits any message.
        assert!(!PublicKey([0; 32]).verifies(b"", &[0; 64]));
    }
}
