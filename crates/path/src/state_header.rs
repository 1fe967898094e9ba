//! The header of a state's file.

use std::collections::{BTreeMap, HashMap};

use dipaco_model::{Dtype, TensorSpec};
use dipaco_topology::Part;
use safetensors::tensor::Metadata;
use serde::{Deserialize, Serialize};

use crate::moment_specs::FIRST;
use crate::piece_cursor::PieceCursor;
use crate::pieced_file::PiecedFile;
use crate::{MomentSpecs, PathError};

const FORMAT: &str = "dipaco-path-state/3";
/// The entry of the file's metadata that holds a [`Place`] as JSON.
pub(crate) const PLACE: &str = "dipaco";
/// Bytes of the length of the header.
pub(crate) const LENGTH: usize = 8;

/// Name of the path's own weights in a state's file.
pub(crate) const OWN: &str = "own";
/// Name of the base of the next outer gradient.
pub(crate) const BASE: &str = "base";
/// Name of the loss of encoding.
pub(crate) const RESIDUAL: &str = "residual";
/// Names of the parts of a lead.
pub(crate) const LEAD: [&str; 3] = ["ahead", "ahead-momentum", "ahead-sent"];
/// Names of the parts of [`FragmentState`](crate::FragmentState).
pub(crate) const PARTS: [&str; 6] = [OWN, BASE, RESIDUAL, LEAD[0], LEAD[1], LEAD[2]];

/// Progress of the path.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    format: String,
    step: u64,
    position: u64,
}

/// What the header of a state's file tells.
#[derive(Debug)]
pub(crate) struct StateHeader {
    /// Inner steps taken since the start of the run.
    pub(crate) step: u64,
    /// Sequences drawn from the shard since the start of the phase.
    pub(crate) position: u64,
    /// Name and number of values of each part of a fragment's state, by level and fragment.
    pub(crate) kept: BTreeMap<(u16, u32), Vec<(&'static str, usize)>>,
    /// Bytes of the file before the first moments of each tensor, as the header tells.
    pub(crate) firsts: HashMap<String, usize>,
}

impl StateHeader {
    /// Reads the header of a file. The header has at most `most` bytes.
    ///
    /// # Errors
    /// When the header is damaged or too long, or the file can't be read.
    pub(crate) fn read(file: &impl PiecedFile, most: u64) -> Result<Self, PathError> {
        let mut cursor = PieceCursor::new(file);
        let length = cursor.read_bytes(0, LENGTH).map_err(PathError::Unread)?;
        let length = u64::from_le_bytes(*length.first_chunk().ok_or_else(damaged)?);
        if length > most {
            let problem = format!("its header has {length} bytes, that of a state at most {most}");
            return Err(PathError::OtherState { problem });
        }
        let length = usize::try_from(length).map_err(|_| damaged())?;
        Self::parse(&cursor.read_bytes(LENGTH, length).map_err(PathError::Unread)?)
    }

    /// Reads a header without its length. Names of another form are left out: whoever reads the tensors of
    /// [`specs`](Self::specs) finds them.
    ///
    /// # Errors
    /// When the header is damaged.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, PathError> {
        let header: Metadata = serde_json::from_slice(json).map_err(|_| damaged())?;
        let place = header.metadata().as_ref();
        let place = place.and_then(|metadata| serde_json::from_str(metadata.get(PLACE)?).ok());
        let place = place.filter(|place: &Place| place.format == FORMAT);
        let Place { step, position, .. } = place.ok_or_else(damaged)?;
        let tensors = header.tensors();
        let mut kept: BTreeMap<(u16, u32), Vec<(&'static str, usize)>> = BTreeMap::new();
        for part in PARTS {
            for (name, info) in &tensors {
                let place = name.strip_prefix(part).and_then(|rest| rest.strip_prefix('/')?.split_once('/'));
                let place =
                    place.and_then(|(level, fragment)| Some((level.parse().ok()?, fragment.parse().ok()?)));
                if let Some(place) = place {
                    kept.entry(place).or_default().push((part, info.shape.iter().product()));
                }
            }
        }
        let begin = LENGTH.saturating_add(json.len());
        let firsts = tensors.iter().filter_map(|(name, info)| {
            let tensor = name.strip_prefix(FIRST)?.to_owned();
            Some((tensor, begin.saturating_add(info.data_offsets.0)))
        });
        Ok(Self { step, position, kept, firsts: firsts.collect() })
    }

    /// The tensors of the file: the moments, and then the parts of the fragments in their order.
    pub(crate) fn specs(&self, moments: &MomentSpecs) -> Vec<TensorSpec> {
        let kept = self.kept.iter().flat_map(|(&(level, fragment), parts)| {
            parts.iter().map(move |&(part, length)| kept_spec(part, level, fragment, length))
        });
        moments.named().into_iter().chain(kept).collect()
    }
}

/// The entry [`PLACE`] of a state's file.
///
/// # Errors
/// When it can't be written as JSON.
pub(crate) fn place(step: u64, position: u64) -> Result<String, PathError> {
    let place = Place { format: FORMAT.to_owned(), step, position };
    serde_json::to_string(&place).map_err(PathError::StateHeader)
}

/// The tensor of one part of a fragment's state.
pub(crate) fn kept_spec(part: &str, level: u16, fragment: u32, values: usize) -> TensorSpec {
    TensorSpec {
        name: format!("{part}/{level}/{fragment}"),
        shape: vec![values],
        // Reading and writing states uses neither field.
        part: Part::Block(0),
        decay: false,
        file_dtype: Dtype::F32,
    }
}

/// The error of a file that is no state, or whose parts do not belong together.
pub(crate) fn damaged() -> PathError {
    PathError::StateFormat { expected: FORMAT }
}
