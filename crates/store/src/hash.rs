//! Hashes of content.

use bytes::Bytes;

/// The BLAKE3 hash of `content` in hexadecimal digits. A blocking thread hashes large content: at a few GB/s a module
/// of some hundred megabytes would delay every other task of an async thread.
pub(crate) async fn hash(content: &Bytes) -> String {
    const INLINE: usize = 256 << 10;
    if content.len() > INLINE {
        let shared = content.clone();
        if let Ok(hash) = tokio::task::spawn_blocking(move || blake3::hash(&shared)).await {
            return hash.to_hex().to_string();
        }
    }
    blake3::hash(content).to_hex().to_string()
}
