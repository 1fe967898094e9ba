//! The devices that computed the records of a part. Other devices round differently, so a record of the results names them.
//! They are no part of the header: any device may continue a part.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use dipaco_shards::WorkPart;

use super::PartFiles;
use crate::RoutingError;

/// Largest list of devices that is read, in bytes.
const LARGEST: u64 = 1 << 16;

impl PartFiles {
    /// The same files, computed by `device` from now on; `None` if records are the same on every device.
    pub(crate) fn on(self, device: Option<String>) -> Self {
        Self { device, ..self }
    }

    /// Names of the devices that worked on a part, one a line.
    fn device_file(&self, part: WorkPart) -> PathBuf {
        self.file(part).with_extension("devices")
    }

    fn device_io(&self, action: &'static str, part: WorkPart) -> impl Fn(std::io::Error) -> RoutingError {
        let path = self.device_file(part);
        move |source| RoutingError::Io { action, path: path.clone(), source }
    }

    /// Notes that this device works on a part.
    pub(super) fn note_device(&self, part: WorkPart) -> Result<(), RoutingError> {
        let Some(device) = &self.device else { return Ok(()) };
        let mut devices = self.devices(part)?;
        if devices.insert(device.replace('\n', " ")) {
            let text: String = devices.iter().map(|device| format!("{device}\n")).collect();
            dipaco_files::publish(&self.device_file(part), text.as_bytes())?;
        }
        Ok(())
    }

    /// The devices that worked on a part, as far as they are known.
    pub(crate) fn devices(&self, part: WorkPart) -> Result<BTreeSet<String>, RoutingError> {
        let mut text = Vec::new();
        match File::open(self.device_file(part)).and_then(|file| file.take(LARGEST).read_to_end(&mut text)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            read => read.map_err(self.device_io("read the devices of a part", part))?,
        };
        Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
    }

    /// Forgets the devices of a part whose records are gone.
    pub(super) fn forget_devices(&self, part: WorkPart) -> Result<(), RoutingError> {
        match std::fs::remove_file(self.device_file(part)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(self.device_io("remove the devices of a part", part)(error))
            }
            _ => Ok(()),
        }
    }
}
