//! What the tests of the binary share: running it, and guests to run it on.
#![allow(dead_code)]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// The shipped guest's ELF.
pub const ELF: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/guests/keccak/guest-keccak.elf"
);

/// The binary, with nothing of the caller's environment that it listens to.
pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cli-openvm"));
    for variable in ["RUST_LOG", "POWDR_BUS_KERNEL", "POWDR_TRACE_PROFILE"] {
        command.env_remove(variable);
    }
    command
}

/// What a run of the binary said.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub output: String,
    pub errors: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Said {
    /// The run went well.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// The run failed, in the user's words: one error, that says all of `words`, and no panic.
    #[track_caller]
    pub fn failed_with(self, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(1), "{self:#?}");
        for word in words {
            assert!(self.errors.contains(word), "no `{word}` in {self:#?}");
        }
        assert!(!self.errors.contains("internal error"), "{self:#?}");
        assert!(!self.errors.contains("panicked"), "{self:#?}");
        let errors = self
            .errors
            .lines()
            .filter(|line| line.starts_with("error: "))
            .count();
        assert_eq!(errors, 1, "{self:#?}");
        self
    }

    /// What stands after `label: ` in the output.
    #[track_caller]
    pub fn value(&self, label: &str) -> &str {
        let label = format!("{label}: ");
        self.output
            .lines()
            .find_map(|line| line.strip_prefix(label.as_str()))
            .unwrap_or_else(|| panic!("no `{label}` in {self:#?}"))
    }
}

/// Runs the binary with these arguments, separated by spaces, and an artifacts directory.
pub fn run(arguments: &str, artifacts: &Path) -> Said {
    binary()
        .args(arguments.split_whitespace())
        .arg("--artifacts-dir")
        .arg(artifacts)
        .output()
        .expect("the binary starts")
        .into()
}

/// Verifies a proof file.
pub fn verify(file: &Path) -> Said {
    binary()
        .arg("verify")
        .arg(file)
        .output()
        .expect("the binary starts")
        .into()
}

/// A new directory, removed when it goes out of scope.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

/// Writes a file into a directory.
pub fn file(directory: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).expect("a temporary file can be written");
    path
}

/// The shipped guest's ELF, to be spoilt.
pub fn elf() -> Vec<u8> {
    std::fs::read(ELF).expect("the shipped guest is there")
}

/// Names of a directory's files.
pub fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .expect("the directory is there")
        .map(|entry| {
            let entry = entry.expect("the directory can be listed");
            entry.file_name().to_string_lossy().into_owned()
        })
        .collect();
    names.sort();
    names
}

/// The first byte of keccak-256 applied `n` times to 32 zero bytes, for a few `n`: computed with another
/// implementation, written for the purpose in Python.
pub fn expected(n: u32) -> u8 {
    match n {
        0 => 0x00,
        // 290decd9548b62a8 …
        1 => 0x29,
        // 9b2baad7528ecec6 …
        10 => 0x9b,
        _ => panic!("no expectation for {n}"),
    }
}
