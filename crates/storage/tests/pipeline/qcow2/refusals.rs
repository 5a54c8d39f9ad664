//! Images that are refused, and images that are damaged.

use super::*;

#[test]
fn a_second_opener_is_refused() {
    let (folder, image) = folder();
    File::create(folder.path().join("base")).unwrap().set_len(BYTES).unwrap();
    qemu_img(folder.path(), "create -q -f qcow2 -b base -F raw disk.qcow2");
    qemu_img(folder.path(), "create -q -f qcow2 -b base -F raw other.qcow2");
    let first = open(&qcow2(&image)).unwrap();
    assert!(refused(&qcow2(&image)).contains("is locked"));
    // QEMU keeps away from the image, and from writing its backing file.
    for written in ["disk.qcow2", "base"] {
        let mut command = Command::new("qemu-img");
        let arguments = ["resize", "-f", if written == "base" { "raw" } else { "qcow2" }];
        let output = command.current_dir(&folder).args(arguments).args([written, "+1M"]).output();
        let output = output.unwrap();
        assert!(
            !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("lock")
        );
    }
    // Others read the backing file meanwhile.
    let second = open(&qcow2(&folder.path().join("other.qcow2"))).unwrap();
    qemu_img(folder.path(), "compare -q -f raw -F raw base base");
    let base = ImageOptions { read_only: false, ..options(&folder.path().join("base")) };
    assert!(refused(&base).contains("is locked"));
    drop((first, second));
    open(&base).unwrap();
}

#[test]
fn a_disk_can_be_read_only() {
    let (folder, image) = folder();
    let model = pattern(1 << 20);
    std::fs::write(folder.path().join("data"), &model).unwrap();
    qemu_img(folder.path(), "convert -f raw -O qcow2 data disk.qcow2");
    let before = std::fs::read(&image).unwrap();
    let options = ImageOptions { read_only: true, ..qcow2(&image) };
    let mut disk = Tested::new(options, model, 1);
    let data = disk.one(&Sent::read(0, 128));
    assert!(data == disk.model[..128 * SECTOR]);
    let site = disk.site();
    site.send(0, &Sent::write(0, vec![1; SECTOR]), 4096).unwrap();
    assert_eq!(site.answers(1)[0].1.status, 1);
    assert!(site.disk.image().resize(Some(1 << 30)).is_err());
    disk.check();
    assert!(before == std::fs::read(&image).unwrap());
}

#[test]
fn what_cannot_be_served_is_refused_in_one_line() {
    let (folder, image) = folder();
    let dir = folder.path();
    let create = |rest: &str| qemu_img(dir, &format!("create -q -f qcow2 {rest}"));
    create("disk.qcow2 1M");
    qemu_img(dir, "snapshot -c now disk.qcow2");
    assert!(refused(&qcow2(&image)).contains("internal snapshots"));
    open(&ImageOptions { read_only: true, ..qcow2(&image) }).unwrap();
    for (keys, reason) in [
        ("-o extended_l2=on", "extended L2"),
        ("-o refcount_bits=1", "refcounts of 1 bits"),
        ("-o data_file=data", "external data file"),
        ("-o compression_type=zstd", "another method than zlib"),
    ] {
        create(&format!("{keys} disk.qcow2 1M"));
        let error = refused(&qcow2(&image));
        assert!(error.contains(reason) && !error.contains('\n'), "{error}");
    }
    File::create(dir.join("base")).unwrap().set_len(1 << 20).unwrap();
    assert!(refused(&qcow2(&dir.join("base"))).contains("not a qcow2 image"));
    create("-b base -F raw disk.qcow2 1M");
    let mut bytes = std::fs::read(&image).unwrap();
    let format = 0xe279_2acau32.to_be_bytes();
    let at = bytes.windows(4).position(|word| word == format).unwrap();
    bytes[at] = 0x11;
    std::fs::write(&image, bytes).unwrap();
    assert!(refused(&qcow2(&image)).contains("which format its backing file has"));
    create("-u -b nbd:host:1 -F raw disk.qcow2 1M");
    assert!(refused(&qcow2(&image)).contains("is not a file"));
    create("-u -b other -F qcow2 disk.qcow2 1M");
    create("-u -b disk.qcow2 -F qcow2 other 1M");
    assert!(refused(&qcow2(&image)).contains("more than 15 backing files"));
    create("-o cluster_size=512 disk.qcow2 1M");
    let direct = ImageOptions { direct: Direct::Always, ..qcow2(&image) };
    assert!(refused(&direct).contains("too small for direct I/O"));
    create("-b base -F raw disk.qcow2");
    let elsewhere = Some(vec![dir.join("images")]);
    let confined = ImageOptions { folders: elsewhere, ..qcow2(&image) };
    assert!(refused(&confined).contains("in no folder of images"));
    let inside = Some(vec![dir.canonicalize().unwrap()]);
    open(&ImageOptions { folders: inside, ..qcow2(&image) }).unwrap();
}

#[test]
fn a_header_in_a_raw_image_is_data() {
    let (folder, image) = folder();
    qemu_img(folder.path(), "create -q -f qcow2 disk.qcow2 1M");
    let bytes = image.metadata().unwrap().len();
    let raw = open(&options(&image)).unwrap();
    assert_eq!((raw.bytes(), raw.format()), (bytes / 512 * 512, Format::Raw));
}

/// Damaged tables: errors, no panic, no hang, and the guest's worker goes on.
#[test]
fn damaged_images_give_errors() {
    let (folder, image) = folder();
    let mut random = Rng::with_seed(3);
    let data = pattern(2 << 20);
    std::fs::write(folder.path().join("data"), &data).unwrap();
    let mut served = 0;
    for round in 0..60u32 {
        let compressed = if round % 2 == 0 { "-c " } else { "" };
        let keys = "-o cluster_size=4k";
        qemu_img(
            folder.path(),
            &format!("convert {compressed}{keys} -f raw -O qcow2 data disk.qcow2"),
        );
        let file = File::options().write(true).open(&image).unwrap();
        let len = file.metadata().unwrap().len();
        for _ in 0..1 + random.u64(..30) {
            // The header; refcounts; the L1 table; and the first L2 tables and data.
            let from = [0, 4096, 12 << 10, 16 << 10, 16 << 10][round as usize % 5];
            let at = random.u64(from..len.min(40 << 10));
            file.write_all_at(&random.u64(..).to_be_bytes()[..random.usize(1..8)], at).unwrap();
        }
        let options = ImageOptions { read_only: round % 3 == 0, ..qcow2(&image) };
        let Ok(image) = open(&options) else { continue };
        served += 1;
        let mut site = Site::new(image, 1, engine::best().unwrap());
        for _ in 0..50 {
            let sector = random.u64(..(2 << 20) / SECTOR as u64 - 128);
            let request = match random.u32(..4) {
                0 => Sent::write(sector, vec![1; SECTOR * (1 + random.usize(..100))]),
                1 => Sent::range(11, sector, 100, 0),
                _ => Sent::read(sector, 100),
            };
            site.send(0, &request, 4096).unwrap();
            assert!(site.answers(1)[0].1.status <= 2);
        }
    }
    assert!(served > 20, "{served} of the damaged images were served");
}
