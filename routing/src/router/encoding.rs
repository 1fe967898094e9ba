//! The bytes of a router.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `DIPACORT` |
//! | 4 | version of the format, little-endian |
//! | 4 | length of the header, little-endian |
//! | … | the header, JSON |
//! | … | the numbers of the rule, little-endian f32 |
//! | 32 | BLAKE3 of everything before |
//!
//! The numbers are the centroids (P, D) of k-means, the centroids (K, width) of each part of product k-means, first to
//! last, the centres (P) of random routing, or the weights (P, D) of a discriminative router; then the biases (P); then,
//! if the header says so, the factors (D) of the features or the rows of the triangular matrix that whitens them, and the
//! token vectors (V, D) that give them.

use super::check_finite;
use super::header::RouterHeader;
use crate::RoutingError;

const MAGIC: &[u8; 8] = b"DIPACORT";
/// Version of the router format that this program writes and reads.
pub const ROUTER_FORMAT_VERSION: u32 = 6;
const FIXED: usize = 16;
const CHECKSUM: usize = 32;

/// Encodes a router.
pub(super) fn encode(header: &RouterHeader, values: &[f32]) -> Result<Vec<u8>, RoutingError> {
    let json = serde_json::to_vec(header)
        .map_err(|error| artefact(format!("its header can't be written: {error}")))?;
    let length = u32::try_from(json.len()).map_err(|_| artefact("its header is over 4 GiB".into()))?;
    let mut bytes = Vec::with_capacity(FIXED + json.len() + 4 * values.len() + CHECKSUM);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&ROUTER_FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    Ok(bytes)
}

/// Decodes and verifies a router.
pub(super) fn decode(bytes: &[u8]) -> Result<(RouterHeader, Vec<f32>), RoutingError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| {
        artefact("it does not begin like a router; give the file that route fit wrote".into())
    })?;
    let (version, _) = take_u32(rest)?;
    if version != ROUTER_FORMAT_VERSION {
        return Err(artefact(format!(
            "its format is version {version}, this program reads version {ROUTER_FORMAT_VERSION}; run route fit and route assign again with \
             this program, in a run that has not been trained yet, or go on with the program that wrote it"
        )));
    }
    let Some((content, checksum)) = bytes.split_last_chunk::<CHECKSUM>() else { return Err(cut()) };
    if blake3::hash(content).as_bytes() != checksum {
        return Err(artefact("its checksum is wrong; copy it again, or run route fit again".into()));
    }
    let rest = content.get(MAGIC.len() + 4..).ok_or_else(cut)?;
    let (length, rest) = take_u32(rest)?;
    let (json, values) = rest.split_at_checked(length as usize).ok_or_else(cut)?;
    let header: RouterHeader = serde_json::from_slice(json)
        .map_err(|error| artefact(format!("its header can't be read: {error}")))?;
    let expected = header.values().unwrap_or(0);
    if expected == 0
        || header.shape().paths() != Some(header.paths)
        || expected.checked_mul(4) != Some(values.len())
    {
        return Err(artefact(format!(
            "its header promises {} paths over {} components, but {} bytes follow; run route fit again",
            header.paths,
            header.dimension,
            values.len()
        )));
    }
    header.fitted_on.config.check()?;
    if header.prefix_tokens == 0 {
        return Err(artefact("it reads no tokens; run route fit again".into()));
    }
    let values: Vec<f32> = values.as_chunks::<4>().0.iter().map(|&value| f32::from_le_bytes(value)).collect();
    check_finite(&values, header.dimension as usize)?;
    Ok((header, values))
}

fn take_u32(bytes: &[u8]) -> Result<(u32, &[u8]), RoutingError> {
    let (value, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut)?;
    Ok((u32::from_le_bytes(*value), rest))
}

fn cut() -> RoutingError {
    artefact("it was cut; copy it again, or run route fit again".into())
}

fn artefact(problem: String) -> RoutingError {
    RoutingError::Artefact { problem }
}
