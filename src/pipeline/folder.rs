//! A folder of results that is there whole or not at all: written beside its place, and renamed.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tempfile::TempDir;

use super::{
    artifacts::{parent, pause_writes},
    error::PipelineError,
};

/// Where folders are being written.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(vec![]);

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the folders that are being written. For a process that is about to end; the guard of [`pause_writes`] says that
/// nobody writes into them any more.
pub fn remove_unfinished_folders(_paused: &MutexGuard<'static, ()>) {
    for path in unfinished().drain(..) {
        // There is nobody left to tell of a failure.
        let _ = std::fs::remove_dir_all(path);
    }
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Tells, before the work whose results go there, whether a new folder can be made at `path`.
///
/// # Errors
/// [`PipelineError::Exists`] if there is anything, [`PipelineError::Write`] if its parent is missing or not writable.
pub fn check_new_folder(what: &'static str, path: &Path) -> Result<(), PipelineError> {
    if exists(path) {
        return Err(PipelineError::Exists {
            what,
            path: path.to_path_buf(),
        });
    }
    // A file without a name: nothing is left of it, whatever happens.
    tempfile::tempfile_in(parent(path))
        .map(drop)
        .map_err(|source| PipelineError::Write {
            what,
            path: path.to_path_buf(),
            source,
        })
}

/// A folder on its way to its place. Dropped before [`StagedFolder::publish`], nothing is left of it.
#[derive(Debug)]
pub struct StagedFolder {
    what: &'static str,
    path: PathBuf,
    /// There until it is published.
    staging: Option<TempDir>,
}

impl StagedFolder {
    /// Begins a folder that will be at `path`; `what` names it in errors.
    ///
    /// # Errors
    /// As [`check_new_folder`].
    pub fn create(what: &'static str, path: &Path) -> Result<Self, PipelineError> {
        check_new_folder(what, path)?;
        let mut folder = Self {
            what,
            path: path.to_path_buf(),
            staging: None,
        };
        let _writing = pause_writes();
        let mut builder = tempfile::Builder::new();
        // Those of any other new folder; by default nobody else could read it.
        #[cfg(unix)]
        let builder = builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
        let staging = builder
            .tempdir_in(parent(path))
            .map_err(|source| folder.failed(path, source))?;
        unfinished().push(staging.path().to_path_buf());
        folder.staging = Some(staging);
        Ok(folder)
    }

    /// Writes one file of it with `content`; `name` is relative to the folder, and subfolders are made.
    ///
    /// # Errors
    /// [`PipelineError::Write`].
    pub fn write(
        &self,
        name: &Path,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), PipelineError> {
        let Some(staging) = &self.staging else {
            return Ok(());
        };
        let path = staging.path().join(name);
        let _writing = pause_writes();
        let write = || {
            std::fs::create_dir_all(parent(&path))?;
            let mut file = BufWriter::new(File::create_new(&path)?);
            content(&mut file)?;
            file.into_inner()
                .map_err(io::IntoInnerError::into_error)?
                .sync_all()
        };
        write().map_err(|source| self.failed(&self.path.join(name), source))
    }

    /// Puts the folder into its place.
    ///
    /// # Errors
    /// As [`check_new_folder`], if something has been put there meanwhile.
    pub fn publish(mut self) -> Result<(), PipelineError> {
        let _writing = pause_writes();
        if let Some(staging) = self.staging.take() {
            forget(staging.path());
            // Renaming would replace an empty folder.
            if exists(&self.path) {
                return Err(PipelineError::Exists {
                    what: self.what,
                    path: self.path.clone(),
                });
            }
            std::fs::rename(staging.path(), &self.path)
                .map_err(|source| self.failed(&self.path, source))?;
            // There is nothing left to be removed where it was.
            let _ = staging.keep();
        }
        Ok(())
    }

    fn failed(&self, path: &Path, source: io::Error) -> PipelineError {
        PipelineError::Write {
            what: self.what,
            path: path.to_path_buf(),
            source,
        }
    }
}

fn forget(staging: &Path) {
    unfinished().retain(|path| path != staging);
}

impl Drop for StagedFolder {
    fn drop(&mut self) {
        if let Some(staging) = self.staging.take() {
            let _writing = pause_writes();
            forget(staging.path());
            drop(staging);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("the folder is there");
        entries
            .map(|entry| {
                let name = entry.expect("it can be listed").file_name();
                name.to_string_lossy().into_owned()
            })
            .collect()
    }

    fn write(folder: &StagedFolder) -> Result<(), PipelineError> {
        folder.write(Path::new("inner/file"), |file| file.write_all(b"content"))
    }

    #[test]
    fn is_there_whole_or_not_at_all() {
        let place = tempfile::tempdir().expect("a temporary directory can be made");
        let path = place.path().join("results");
        let folder = StagedFolder::create("a test", &path).expect("it is new");
        write(&folder).expect("it can be written");
        assert!(!path.exists());
        drop(folder);
        assert_eq!(names(place.path()), [""; 0]);

        let folder = StagedFolder::create("a test", &path).expect("it is new");
        write(&folder).expect("it can be written");
        // The same file twice is a defect of the caller, and nothing is lost in silence.
        assert!(matches!(write(&folder), Err(PipelineError::Write { .. })));
        folder.publish().expect("its place is free");
        assert_eq!(names(place.path()), ["results"]);
        let content = std::fs::read(path.join("inner/file")).expect("it was written");
        assert_eq!(content, b"content");
    }

    #[test]
    fn nothing_is_overwritten() {
        let place = tempfile::tempdir().expect("a temporary directory can be made");
        let path = place.path().join("results");
        let late = StagedFolder::create("a test", &path).expect("it is new");
        std::fs::create_dir(&path).expect("it can be made");
        let exists = |result| matches!(result, Err(PipelineError::Exists { .. }));
        assert!(exists(late.publish()));
        assert!(exists(check_new_folder("a test", &path)));
        assert!(exists(StagedFolder::create("a test", &path).map(drop)));
        let nowhere = place.path().join("missing/results");
        assert!(matches!(
            check_new_folder("a test", &nowhere),
            Err(PipelineError::Write { .. })
        ));
        assert_eq!(names(place.path()), ["results"]);
    }
}
