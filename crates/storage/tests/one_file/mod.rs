//! A file system with one file, over FUSE. Each operation on the file is a call of a [`Content`],
//! which can record it, or make it fail. Writes of several threads are answered in any order.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, SessionACL, TimeOrNow, WriteFlags,
};
use nix::mount::{MntFlags, umount2};

/// The name of the file.
const NAME: &str = "disk";
const FILE: INodeNo = INodeNo(2);
/// How long the kernel keeps attributes.
const VALID: Duration = Duration::from_secs(1);

/// What is in the file. Errors are those of the system.
pub trait Content: Clone + Send + Sync + 'static {
    fn len(&self) -> u64;
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, i32>;
    /// A write begins. Its number is passed to [`written`](Self::written) before it is answered.
    fn write(&self, offset: u64, data: &[u8]) -> Result<u64, i32>;
    fn written(&self, number: u64);
    /// A hole is punched.
    fn punch(&self, offset: u64, len: u64) -> Result<(), i32>;
    /// Everything that was answered is to be stable. `thread`: whoever asks for that.
    fn sync(&self, thread: u32) -> Result<(), i32>;
    fn set_len(&self, len: u64) -> Result<(), i32>;
}

/// A write that has begun.
struct Begun {
    number: u64,
    len: u32,
    reply: ReplyWrite,
}

/// The file system, while it is mounted.
pub struct OneFile {
    session: Option<BackgroundSession>,
    answering: Option<JoinHandle<()>>,
    folder: tempfile::TempDir,
}

impl OneFile {
    /// `None`: there is no FUSE here, which is said. `direct`: the page cache is not used.
    pub fn mount<C: Content>(content: C, direct: bool) -> Option<OneFile> {
        let folder = tempfile::tempdir().unwrap();
        let (begun, answered) = channel();
        let served = Served { content: content.clone(), direct, begun };
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("ringmain-test".into())];
        config.acl = SessionACL::All;
        match fuser::spawn_mount(served, folder.path(), &config) {
            Ok(session) => {
                let answering = std::thread::spawn(move || answer(&content, &answered));
                Some(OneFile { session: Some(session), answering: Some(answering), folder })
            }
            Err(error) => {
                // Not by a macro: the test harness would swallow what a passing test prints.
                let line = format!("not tested: a file system over FUSE: {error}\n");
                io::stderr().write_all(line.as_bytes()).unwrap();
                None
            }
        }
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }
}

impl Drop for OneFile {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            // Lazily: a child of another test may hold the file until it starts its program.
            let ended = umount2(self.folder.path(), MntFlags::MNT_DETACH)
                .map_err(io::Error::from)
                .and_then(|()| session.join());
            // A session that reads while the kernel takes the connection down may be told that the
            // connection was aborted, instead of that it is gone.
            let aborted = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionAborted;
            let is_over = ended.as_ref().err().is_none_or(aborted);
            assert!(is_over || std::thread::panicking(), "{ended:?}");
        }
        self.answering.take().map(JoinHandle::join);
    }
}

/// Answers writes. Those that wait at the same time are answered in any order.
fn answer<C: Content>(content: &C, begun: &Receiver<Begun>) {
    let (mut random, mut waiting) = (Rng::with_seed(1), Vec::new());
    while let Ok(first) = begun.recv() {
        waiting.push(first);
        while !waiting.is_empty() {
            waiting.extend(begun.try_iter());
            let Begun { number, len, reply } = waiting.swap_remove(random.usize(..waiting.len()));
            content.written(number);
            reply.written(len);
        }
    }
}

struct Served<C> {
    content: C,
    direct: bool,
    begun: Sender<Begun>,
}

fn attributes(ino: INodeNo, kind: FileType, size: u64) -> FileAttr {
    let (perm, nlink) = if kind == FileType::Directory { (0o755, 2) } else { (0o600, 1) };
    FileAttr {
        ino,
        size,
        blocks: size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn done(result: Result<(), i32>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(Errno::from_i32(error)),
    }
}

impl<C: Content> Served<C> {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        match ino {
            FILE => attributes(FILE, FileType::RegularFile, self.content.len()),
            _ => attributes(INodeNo::ROOT, FileType::Directory, 0),
        }
    }
}

impl<C: Content> Filesystem for Served<C> {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match Path::new(name) == Path::new(NAME) {
            true => reply.entry(&VALID, &self.attr(FILE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&VALID, &self.attr(ino));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match size.map_or(Ok(()), |size| self.content.set_len(size)) {
            Ok(()) => reply.attr(&VALID, &self.attr(ino)),
            Err(error) => reply.error(Errno::from_i32(error)),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        let flags = if self.direct { direct } else { FopenFlags::empty() };
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buffer = vec![0; size as usize];
        match self.content.read(offset, &mut buffer) {
            Ok(len) => reply.data(&buffer[..len]),
            Err(error) => reply.error(Errno::from_i32(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.content.write(offset, data) {
            Ok(number) => {
                let len = data.len() as u32;
                self.begun.send(Begun { number, len, reply }).expect("writes are answered");
            }
            Err(error) => reply.error(Errno::from_i32(error)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, asked: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        done(self.content.sync(asked.pid()), reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match mode {
            PUNCH => done(self.content.punch(offset, length), reply),
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }
}
