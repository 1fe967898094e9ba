//! Hashes of content.

use object_store::PutPayload;

/// The BLAKE3 hash of `content` in hexadecimal digits. A blocking thread hashes large content: at a few GB/s a module
/// of some hundred megabytes would delay every other task of an async thread.
pub(crate) async fn hash(content: &PutPayload) -> String {
    const INLINE: usize = 256 << 10;
    if content.content_length() > INLINE {
        let shared = content.clone();
        if let Ok(hash) = tokio::task::spawn_blocking(move || of_parts(&shared)).await {
            return hash;
        }
    }
    of_parts(content)
}

fn of_parts(content: &PutPayload) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in content {
        hasher.update(part);
    }
    hasher.finalize().to_hex().to_string()
}
