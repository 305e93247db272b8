//! Results of stages on disk, keyed by their content: a hash of a stage's own inputs and the transpiled program.
//!
//! A file is a checksum followed by JSON. It is written beside its place and renamed, so that nobody ever sees half a
//! file; one that does not check is rebuilt, with a warning.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{de::DeserializeOwned, Serialize};
use sha2::{Digest, Sha256};

use super::error::PipelineError;

/// Changes whenever the meaning of an artifact does.
const FORMAT: &str = concat!("openvm-apc artifact 1, ", env!("CARGO_PKG_VERSION"));

/// Bytes of the checksum at the start of a file.
const CHECKSUM_BYTES: usize = 32;

/// A directory of artifacts.
#[derive(Clone, Debug)]
pub struct ArtifactStore {
    directory: PathBuf,
}

/// What an artifact is keyed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactKey {
    stage: &'static str,
    digest: String,
}

impl ArtifactKey {
    /// The key of a stage's result. `inputs` is everything that the result depends on.
    pub fn new(stage: &'static str, inputs: &impl Serialize) -> Result<Self, PipelineError> {
        let inputs = serde_json::to_vec(inputs)
            .map_err(|error| PipelineError::Vm(format!("a stage's inputs: {error}")))?;
        let mut hasher = Sha256::new();
        hasher.update(FORMAT.as_bytes());
        hasher.update([0]);
        hasher.update(stage.as_bytes());
        hasher.update([0]);
        hasher.update(&inputs);
        Ok(Self {
            stage,
            digest: hex::encode(hasher.finalize()),
        })
    }

    fn file_name(&self) -> String {
        format!("{}-{}.json", self.stage, self.digest)
    }
}

impl ArtifactStore {
    /// The artifacts under `directory`, or under the platform's cache directory. Creates it.
    pub fn open(directory: Option<&Path>) -> Result<Self, PipelineError> {
        let directory = match directory {
            Some(directory) => directory.to_path_buf(),
            None => {
                use etcetera::BaseStrategy;

                etcetera::choose_base_strategy()
                    .map_err(|_| PipelineError::NoArtifactsDirectory)?
                    .cache_dir()
                    .join("openvm-apc")
            }
        };
        std::fs::create_dir_all(&directory).map_err(|source| PipelineError::Write {
            what: "the artifacts directory",
            path: directory.clone(),
            source,
        })?;
        Ok(Self { directory })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The artifact with this key, if it is there and whole.
    pub fn load<T: DeserializeOwned>(&self, key: &ArtifactKey) -> Option<T> {
        let path = self.directory.join(key.file_name());
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(
                    "{} cannot be read ({error}): building it anew",
                    path.display()
                );
                return None;
            }
        };
        let value = bytes
            .split_at_checked(CHECKSUM_BYTES)
            .filter(|(checksum, json)| *Sha256::digest(json) == **checksum)
            .and_then(|(_, json)| serde_json::from_slice(json).ok());
        if value.is_none() {
            tracing::warn!("{} is damaged: building it anew", path.display());
        }
        value
    }

    /// Stores an artifact.
    pub fn store<T: Serialize>(&self, key: &ArtifactKey, value: &T) -> Result<(), PipelineError> {
        let path = self.directory.join(key.file_name());
        let json = serde_json::to_vec(value)
            .map_err(|error| PipelineError::Vm(format!("an artifact: {error}")))?;
        let mut bytes = Sha256::digest(&json).to_vec();
        bytes.extend(json);
        write_atomically("the artifact", &path, &bytes)
    }

    /// The artifact with this key, built and stored if it is not there. Tells whether it was there.
    pub fn load_or_build<T: Serialize + DeserializeOwned>(
        &self,
        key: &ArtifactKey,
        build: impl FnOnce() -> Result<T, PipelineError>,
    ) -> Result<(T, bool), PipelineError> {
        if let Some(value) = self.load(key) {
            return Ok((value, true));
        }
        // An error now rather than after a minute's work.
        check_writable("the artifact", &self.directory.join(key.file_name()))?;
        let value = build()?;
        self.store(key, &value)?;
        Ok((value, false))
    }
}

/// Held while a file is being written.
static WRITING: Mutex<()> = Mutex::new(());

/// Waits until nothing is being written, and keeps it so for as long as the guard lives: a process that ends then
/// leaves no half-written file and no temporary one.
pub fn pause_writes() -> MutexGuard<'static, ()> {
    WRITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder that a file or folder lies in.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Where a file is written: links are followed.
enum Target {
    /// To a new file, or over one: beside it, and renamed.
    File(PathBuf),
    /// Into a device or a pipe, as it is: renaming would put a file in its place.
    Stream,
}

fn target(path: &Path) -> std::io::Result<Target> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(std::io::ErrorKind::IsADirectory.into()),
        Ok(metadata) if metadata.is_file() => Ok(Target::File(path.canonicalize()?)),
        Ok(_) => Ok(Target::Stream),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Ok(Target::File(path.to_path_buf()))
        }
        Err(error) => Err(error),
    }
}

/// Tells, before the work whose result goes there, whether a file can be made at `path`.
pub fn check_writable(what: &'static str, path: &Path) -> Result<(), PipelineError> {
    let check = || match target(path)? {
        // A file without a name: nothing is left of it, whatever happens.
        Target::File(path) => tempfile::tempfile_in(parent(&path)).map(|_| ()),
        Target::Stream => Ok(()),
    };
    check().map_err(|source| PipelineError::Write {
        what,
        path: path.to_path_buf(),
        source,
    })
}

/// A temporary file with the permissions of any other new file; by default nobody else could read it.
fn new_file_in(directory: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    let builder = builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(directory)
}

/// Writes a file beside its place and renames it.
pub fn write_atomically(
    what: &'static str,
    path: &Path,
    bytes: &[u8],
) -> Result<(), PipelineError> {
    let write = || match target(path)? {
        Target::File(path) => {
            let _writing = pause_writes();
            let mut file = new_file_in(parent(&path))?;
            file.write_all(bytes)?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|persist| persist.error)?;
            Ok(())
        }
        Target::Stream => std::fs::OpenOptions::new()
            .write(true)
            .open(path)?
            .write_all(bytes),
    };
    write().map_err(|source| PipelineError::Write {
        what,
        path: path.to_path_buf(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, ArtifactStore) {
        let directory = tempfile::tempdir().unwrap();
        let store = ArtifactStore::open(Some(&directory.path().join("new"))).unwrap();
        (directory, store)
    }

    #[test]
    fn builds_once() {
        let (_directory, store) = store();
        let key = ArtifactKey::new("stage", &("a", 1)).unwrap();
        assert_eq!(
            store.load_or_build(&key, || Ok(vec![1, 2])).unwrap(),
            (vec![1, 2], false)
        );
        assert_eq!(
            store
                .load_or_build::<Vec<i32>>(&key, || panic!("it is there"))
                .unwrap(),
            (vec![1, 2], true)
        );
        assert_ne!(key, ArtifactKey::new("stage", &("a", 2)).unwrap());
        assert_ne!(key, ArtifactKey::new("other", &("a", 1)).unwrap());
    }

    #[test]
    fn damaged_files_are_rebuilt() {
        let (_directory, store) = store();
        let key = ArtifactKey::new("stage", &1).unwrap();
        store.store(&key, &vec![1, 2, 3]).unwrap();
        let path = store.directory().join(key.file_name());
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        for damaged in [&whole[..whole.len() - 1], &whole[..3], &[], &flipped] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(store.load::<Vec<i32>>(&key), None);
        }
        assert!(!store.load_or_build(&key, || Ok(vec![4])).unwrap().1);
        assert_eq!(store.load(&key), Some(vec![4]));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_pipes_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        std::fs::write(&file, b"old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_atomically("a test", &link, b"new").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"new");

        let pipe = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read(pipe).unwrap()
        });
        check_writable("a test", &pipe).unwrap();
        write_atomically("a test", &pipe, b"through").unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        assert!(!std::fs::symlink_metadata(&pipe).unwrap().is_file());
        assert!(write_atomically("a test", directory.path(), b"").is_err());
    }

    #[test]
    fn nothing_half_written() {
        let (_directory, store) = store();
        let key = ArtifactKey::new("stage", &1).unwrap();
        let failed = store.load_or_build::<i32>(&key, || Err(PipelineError::Interrupted));
        assert!(matches!(failed, Err(PipelineError::Interrupted)));
        assert_eq!(std::fs::read_dir(store.directory()).unwrap().count(), 0);
    }
}
