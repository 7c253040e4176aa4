//! [`Encryption`]: whether what a directory holds is encrypted where it lies.
//!
//! dm-crypt is found in sysfs, by the UUID that device-mapper gives a mapping (`CRYPT-LUKS2-…`, `CRYPT-PLAIN-…`), through
//! whatever is built upon it: partitions of LVM, RAID, a loop device whose file lies on it. fscrypt says so itself.
//! What a disk or its controller does for itself (self-encrypting drives, a cloud's volumes) cannot be seen from here.

use std::fmt;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{fstat, major, minor};

use super::mounts::Mount;

/// How a directory's content is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// Every device it lies on is a dm-crypt mapping, or built upon such.
    DmCrypt,
    /// The directory has an fscrypt policy: what is made in it is encrypted.
    Fscrypt,
    /// eCryptfs.
    Ecryptfs,
    /// In memory: swap is where it may be written to a disk.
    Memory,
    /// Nothing that can be seen encrypts it.
    None {
        /// The device that is not encrypted.
        device: String,
    },
    /// It cannot be told from here.
    Unknown {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encryption::DmCrypt => f.write_str("dm-crypt"),
            Encryption::Fscrypt => f.write_str("fscrypt"),
            Encryption::Ecryptfs => f.write_str("eCryptfs"),
            Encryption::Memory => f.write_str("in memory (swap may not be encrypted)"),
            Encryption::None { device } => write!(f, "not encrypted (device {device})"),
            Encryption::Unknown { reason } => write!(f, "not known: {reason}"),
        }
    }
}

impl Encryption {
    /// Of what the open directory holds; `mount` is the one it lies on.
    pub fn of(directory: BorrowedFd<'_>, mount: Option<&Mount>) -> Encryption {
        if has_policy(directory) {
            return Encryption::Fscrypt;
        }
        match mount.map_or("", |mount| mount.filesystem.as_str()) {
            "tmpfs" | "ramfs" => return Encryption::Memory,
            "ecryptfs" => return Encryption::Ecryptfs,
            _ => {}
        }
        let Ok(stat) = fstat(directory) else {
            return Encryption::Unknown { reason: "fstat(2) fails".to_owned() };
        };
        let sysfs = Sysfs { root: Path::new("/sys") };
        match sysfs.devices(directory, (major(stat.st_dev), minor(stat.st_dev)), mount) {
            Ok(devices) => sysfs.of_devices(&devices, DEPTH_MAX),
            Err(reason) => Encryption::Unknown { reason },
        }
    }
}

type Device = (u64, u64);

/// Nobody stacks so many layers; a circle would have no end.
const DEPTH_MAX: usize = 12;

/// What sysfs shows of block devices.
struct Sysfs<'r> {
    /// `/sys`.
    root: &'r Path,
}

impl Sysfs<'_> {
    /// The block devices of the filesystem.
    fn devices(
        &self,
        directory: BorrowedFd<'_>,
        dev: Device,
        mount: Option<&Mount>,
    ) -> Result<Vec<Device>, String> {
        if dev.0 != 0 {
            return Ok(vec![dev]);
        }
        // btrfs and others have a number of their own, which no block device has.
        if let Some(uuid) = crate::observe::btrfs::uuid(directory) {
            let all = names(&self.root.join(format!("fs/btrfs/{uuid}/devices")));
            let class = self.root.join("class/block");
            let numbers: Vec<_> = all.iter().filter_map(|name| number_in(&class.join(name))).collect();
            if !numbers.is_empty() && numbers.len() == all.len() {
                return Ok(numbers);
            }
        }
        let Some(mount) = mount else { return Err("its mount cannot be found".to_owned()) };
        let source = std::fs::metadata(&mount.source).ok();
        match source.filter(|it| it.mode() & libc::S_IFMT == libc::S_IFBLK) {
            Some(device) => Ok(vec![(major(device.rdev()), minor(device.rdev()))]),
            None => Err(format!("a {} has no block device here", mount.filesystem)),
        }
    }

    /// Encrypted only when every device is.
    fn of_devices(&self, devices: &[Device], depth: usize) -> Encryption {
        let mut all = devices.iter().map(|device| self.of_device(*device, depth));
        all.find(|one| *one != Encryption::DmCrypt).unwrap_or(Encryption::DmCrypt)
    }

    fn of_device(&self, (major, minor): Device, depth: usize) -> Encryption {
        let sys = self.root.join(format!("dev/block/{major}:{minor}"));
        let Ok(resolved) = sys.canonicalize() else {
            return Encryption::Unknown { reason: format!("sysfs shows no device {major}:{minor}") };
        };
        let name = resolved.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let read =
            |path: &str| std::fs::read_to_string(sys.join(path)).ok().map(|text| text.trim().to_owned());
        if read("dm/uuid").is_some_and(|uuid| uuid.starts_with("CRYPT-")) {
            return Encryption::DmCrypt;
        }
        if depth == 0 {
            return Encryption::Unknown { reason: format!("too many layers of devices below {name}") };
        }
        let slaves = sys.join("slaves");
        let below: Vec<_> = names(&slaves).iter().filter_map(|it| number_in(&slaves.join(it))).collect();
        if !below.is_empty() {
            return self.of_devices(&below, depth - 1);
        }
        if let Some(file) = read("loop/backing_file") {
            return self
                .of_file(Path::new(&file), depth - 1)
                .unwrap_or(Encryption::None { device: format!("{name}, a loop device over {file}") });
        }
        // A partition's own directory has no slaves: those of the disk count.
        if sys.join("partition").exists()
            && let Some(disk) = resolved.parent().and_then(number_in)
        {
            return self.of_device(disk, depth - 1);
        }
        Encryption::None { device: name }
    }

    /// The file that a loop device shows; `None` when it cannot be seen from here.
    fn of_file(&self, path: &Path, depth: usize) -> Option<Encryption> {
        let stat = std::fs::metadata(path).ok()?;
        let device = (major(stat.dev()), minor(stat.dev()));
        (device.0 != 0).then(|| self.of_device(device, depth))
    }
}

/// The number of the device whose directory in sysfs this is.
fn number_in(sys: &Path) -> Option<Device> {
    let text = std::fs::read_to_string(sys.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn names(directory: &Path) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect()
}

/// Whether the directory has an fscrypt policy (Linux 5.4; Documentation/filesystems/fscrypt.rst).
fn has_policy(directory: BorrowedFd<'_>) -> bool {
    /// `_IOWR('f', 22, __u8[9])`.
    const FS_IOC_GET_ENCRYPTION_POLICY_EX: libc::c_ulong = 0xc009_6616;
    /// `struct fscrypt_get_policy_ex_arg`: a size, then the largest of the policies.
    #[repr(C)]
    struct Argument {
        policy_size: u64,
        policy: [u8; 24],
    }
    let mut argument = Argument { policy_size: 24, policy: [0; 24] };
    // SAFETY: the ioctl reads the size through the pointer and writes the size and at most so many bytes of policy, which is
    // what `Argument` has room for; it outlives the call. The descriptor is borrowed for it. Filesystems that do not know
    // the number touch nothing.
    let result =
        unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_GET_ENCRYPTION_POLICY_EX, &raw mut argument) };
    Errno::result(result).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn memory_and_processes_are_no_disks() {
        let of = |path: &str| {
            let directory = std::fs::File::open(path).unwrap();
            Encryption::of(directory.as_fd(), Mount::of(Path::new(path)).as_ref())
        };
        assert!(matches!(of("/proc"), Encryption::Unknown { .. }));
        if Mount::of(Path::new("/dev/shm")).is_some_and(|mount| mount.filesystem == "tmpfs") {
            assert_eq!(of("/dev/shm"), Encryption::Memory);
        }
    }

    /// A made-up sysfs: the shape is that of Linux 6.12 with LUKS, LVM and md. That the kernel keeps to it is not shown here.
    #[test]
    fn encryption_is_found_through_every_layer_and_only_when_all_devices_have_it() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().unwrap();
        let device = |name: &str, number: &str, below: &[&str], uuid: Option<&str>| {
            let dir = root.path().join("devices/virtual/block").join(name);
            std::fs::create_dir_all(dir.join("slaves")).unwrap();
            std::fs::create_dir_all(root.path().join("dev/block")).unwrap();
            std::fs::write(dir.join("dev"), format!("{number}\n")).unwrap();
            symlink(&dir, root.path().join("dev/block").join(number)).unwrap();
            for slave in below {
                let last = slave.rsplit('/').next().unwrap();
                symlink(root.path().join("devices/virtual/block").join(slave), dir.join("slaves").join(last))
                    .unwrap();
            }
            if let Some(uuid) = uuid {
                std::fs::create_dir(dir.join("dm")).unwrap();
                std::fs::write(dir.join("dm/uuid"), format!("{uuid}\n")).unwrap();
            }
        };
        device("sda", "8:0", &[], None);
        device("sda/sda1", "8:1", &[], None);
        std::fs::write(root.path().join("devices/virtual/block/sda/sda1/partition"), "1\n").unwrap();
        device("dm-0", "253:0", &["sda"], Some("CRYPT-LUKS2-0123-luks"));
        device("dm-1", "253:1", &["dm-0"], Some("LVM-abc"));
        device("dm-2", "253:2", &["sda/sda1"], Some("LVM-abc"));
        device("md0", "9:0", &["dm-0", "dm-1"], None);
        device("md1", "9:1", &["dm-1", "dm-2"], None);
        device("loop", "253:9", &["loop"], Some("LVM-circle"));
        let of = |device| Sysfs { root: root.path() }.of_device(device, DEPTH_MAX);
        let plain = Encryption::None { device: "sda".to_owned() };
        assert_eq!(of((253, 0)), Encryption::DmCrypt);
        assert_eq!(of((253, 1)), Encryption::DmCrypt, "LVM upon LUKS");
        assert_eq!(of((9, 0)), Encryption::DmCrypt, "RAID of two that are encrypted");
        assert_eq!(of((8, 1)), plain, "a partition is as its disk");
        assert_eq!(of((253, 2)), plain, "LVM upon a partition");
        assert_eq!(of((9, 1)), plain, "one of two is not encrypted");
        assert!(matches!(of((253, 9)), Encryption::Unknown { .. }), "a circle ends");
        assert!(matches!(of((4095, 1)), Encryption::Unknown { .. }), "no such device");
    }
}
