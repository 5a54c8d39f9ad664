# Everything here works on a fresh Debian 12 as root; what is missing gets installed first.

CARGO ?= cargo
PREFIX ?= /usr/local
# Debian's own cargo is found before one of rustup's that is not on the path yet.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
TARGET := $(or $(CARGO_TARGET_DIR),target)
RINGMAIN := $(TARGET)/release/ringmain
LAB := $(TARGET)/release/ringmain-lab

.PHONY: all build demo demo-disk demo-xen bench bench-disk bench-embedded bench-instructions bench-isolation bench-migration bench-overlay bench-xen bench-xen-disk lab test lint deny fuzz deb deb-check install install-xen uninstall clean

all: build

build: ## the commands ringmain and ringmain-lab
	@scripts/deps build
	$(CARGO) build --release --locked

# What the demonstration's guests are: qemu or embedded.
GUESTS ?= qemu

demo: ## two guests, eight streams, 1, 2 and 4 queues: a table and a report
	@scripts/deps $(if $(filter embedded,$(GUESTS)),build embedded)
	$(CARGO) build --release --locked
	$(LAB) demo --guests $(GUESTS) $(ARGS)

demo-disk: ## a guest that reads, writes and verifies disks of 1, 2 and 4 queues: a table and a report
	@scripts/deps build $(if $(filter embedded,$(GUESTS)),,$(if $(filter xen,$(GUESTS)),xen,guests) disks)
	$(CARGO) build --release --locked
	$(LAB) demo-disk --guests $(GUESTS) $(ARGS)

demo-xen: ## the same on a real Xen host, which runs under QEMU
	@scripts/deps build xen
	$(CARGO) build --release --locked
	$(LAB) demo --guests xen --out out/demo-xen $(ARGS)

bench: ## Ringmain beside OVS-DPDK and a bare copy: medians, ratios, goals, and their history
	@scripts/deps build peers guests
	$(CARGO) build --release --locked
	$(LAB) bench $(ARGS)

bench-disk: ## disks beside qemu-storage-daemon and fio: medians, ratios, goals, and their history
	@scripts/deps build disks
	$(CARGO) build --release --locked
	$(LAB) bench-disk $(ARGS)

bench-embedded: ## each switch of the embedded hypervisor, on against off
	@scripts/deps build embedded
	$(CARGO) build --release --locked
	$(LAB) bench-embedded $(ARGS)

bench-instructions: ## instructions per frame, step by step
	@scripts/deps build instructions
	$(CARGO) build --release --locked --bin bench-instructions
	$(TARGET)/release/bench-instructions $(ARGS)

bench-isolation: ## what guests keep beside a hostile neighbour, attack by attack
	@scripts/deps build
	$(CARGO) build --release --locked
	$(LAB) bench-isolation $(ARGS)

bench-migration: ## how long a stock guest that migrates is out of reach
	@scripts/deps build guests routing
	$(CARGO) build --release --locked
	$(LAB) bench-migration $(ARGS)

bench-overlay: ## overlays between two hosts beside the kernel's VXLAN and OVS-DPDK: CPU time per frame
	@scripts/deps build embedded peers
	$(CARGO) build --release --locked
	$(LAB) bench-overlay $(ARGS)

bench-xen: ## Ringmain beside the kernel's xen-netback, on real Xen, instructions counted
	@scripts/deps build xen
	$(CARGO) build --release --locked
	$(LAB) bench-xen $(ARGS)

bench-xen-disk: ## Ringmain beside the kernel's xen-blkback, on real Xen, instructions counted
	@scripts/deps build xen disks
	$(CARGO) build --release --locked
	$(LAB) bench-xen-disk $(ARGS)

lab: ## published experiments, rerun in their quick form, and a report of them
	@scripts/deps build embedded
	$(CARGO) build --release --locked
	@status=0; $(LAB) run --all --quick --guests embedded $(ARGS) || status=$$?; \
	out=$$(printf '%s' '$(ARGS)' | sed -n 's/.*--out[= ] *\([^ ]*\).*/\1/p'); \
	$(LAB) report $${out:+--out "$$out"} || exit $$?; exit $$status

test: ## everything that can fail
	@scripts/test

lint: ## format and clippy
	@scripts/deps build lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

deny: ## licences, versions and sources of dependencies; needs cargo-deny (cargo install cargo-deny --locked)
	$(CARGO) deny --locked check --hide-inclusion-graph licenses bans sources

fuzz: ## every fuzz target for FUZZ_SECONDS (60), with a nightly compiler
	@scripts/fuzz

install: build ## the commands, their manual pages, a sample configuration and a dashboard for Grafana, under PREFIX
	for command in ringmain ringmain-lab; do \
	  install -D -s -m 755 $(TARGET)/release/$$command $(DESTDIR)$(PREFIX)/bin/$$command && \
	  install -D -m 644 docs/$$command.1 $(DESTDIR)$(PREFIX)/share/man/man1/$$command.1 || exit; \
	done
	install -D -m 644 docs/ringmain.toml $(DESTDIR)$(PREFIX)/share/doc/ringmain/ringmain.toml
	install -D -m 644 grafana/ringmain.json $(DESTDIR)$(PREFIX)/share/ringmain/grafana/ringmain.json

install-xen: install ## and what a Xen host needs: the hotplug scripts, the unit, and what keeps xen-netback away
	for script in vif-ringmain block-ringmain; do \
	  install -D -m 755 xen/$$script $(DESTDIR)/etc/xen/scripts/$$script || exit; \
	done
	install -D -m 644 xen/ringmain-modules.conf $(DESTDIR)/etc/modprobe.d/ringmain.conf
	install -d $(DESTDIR)/etc/modules-load.d $(DESTDIR)$(PREFIX)/lib/systemd/system
	printf '%s\n' xen-gntdev xen-gntalloc xen-evtchn xenfs tun > $(DESTDIR)/etc/modules-load.d/ringmain.conf
	sed 's|/usr/local/bin|$(PREFIX)/bin|' xen/ringmain.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/ringmain.service

uninstall: ## what install and install-xen put in place; configurations stay
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,$(foreach command,ringmain ringmain-lab,bin/$(command) share/man/man1/$(command).1))
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/ringmain $(DESTDIR)$(PREFIX)/share/ringmain
	rm -f $(addprefix $(DESTDIR)/etc/xen/scripts/,vif-ringmain block-ringmain) $(DESTDIR)/etc/modprobe.d/ringmain.conf \
	  $(DESTDIR)/etc/modules-load.d/ringmain.conf $(DESTDIR)$(PREFIX)/lib/systemd/system/ringmain.service

# Where packages go.
export PACKAGES ?= $(CURDIR)/out/deb

deb: ## packages for Debian in out/deb: daemon, Xen host, laboratory
	@scripts/deps build deb
	mkdir -p $(PACKAGES)
	debian/rules clean
	debian/rules binary
	debian/rules clean
	@ls $(PACKAGES)/*.deb

deb-check: deb ## the packages, tried in a clean Debian: installing, upgrading, removing, purging
	@scripts/packages

clean:
	rm -rf out
	$(CARGO) clean
