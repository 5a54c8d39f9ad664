# Everything here works on a fresh Debian 12 as root; what is missing gets installed first.

CARGO ?= cargo
PREFIX ?= /usr/local
# Debian's own cargo is found before one of rustup's that is not on the path yet.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
TARGET := $(or $(CARGO_TARGET_DIR),target)
RINGMAIN := $(TARGET)/release/ringmain

.PHONY: all build demo demo-xen bench bench-embedded bench-instructions bench-xen lab test lint fuzz install install-xen clean

all: build

build: ## the ringmain command
	@scripts/deps build
	$(CARGO) build --release --locked

# What the demonstration's guests are: qemu or embedded.
GUESTS ?= qemu

demo: ## two guests, eight streams, 1, 2 and 4 queues: a table and a report
	@scripts/deps $(if $(filter embedded,$(GUESTS)),build embedded)
	$(CARGO) build --release --locked
	$(RINGMAIN) demo --guests $(GUESTS) $(ARGS)

demo-xen: ## the same on a real Xen host, which runs under QEMU
	@scripts/deps build xen
	$(CARGO) build --release --locked
	$(RINGMAIN) demo --guests xen --out out/demo-xen $(ARGS)

bench: ## Ringmain beside OVS-DPDK and a bare copy: medians, ratios, goals, and their history
	@scripts/deps build peers guests
	$(CARGO) build --release --locked
	$(RINGMAIN) bench $(ARGS)

bench-embedded: ## each switch of the embedded hypervisor, on against off
	@scripts/deps build embedded
	$(CARGO) build --release --locked
	$(RINGMAIN) bench-embedded $(ARGS)

bench-instructions: ## instructions per frame, step by step
	@scripts/deps build instructions
	$(CARGO) build --release --locked
	$(RINGMAIN) bench-instructions $(ARGS)

bench-xen: ## Ringmain beside the kernel's xen-netback, on real Xen, instructions counted
	@scripts/deps build xen
	$(CARGO) build --release --locked
	$(RINGMAIN) bench-xen $(ARGS)

lab: ## published experiments, rerun in their quick form, and a report of them
	@scripts/deps build embedded
	$(CARGO) build --release --locked
	@status=0; $(RINGMAIN) lab run --all --quick --guests embedded $(ARGS) || status=$$?; \
	out=$$(printf '%s' '$(ARGS)' | sed -n 's/.*--out[= ] *\([^ ]*\).*/\1/p'); \
	$(RINGMAIN) lab report $${out:+--out "$$out"} || exit $$?; exit $$status

test: ## everything that can fail
	@scripts/test

lint: ## format and clippy
	@scripts/deps build lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

fuzz: ## every fuzz target for FUZZ_SECONDS (60), with a nightly compiler
	@scripts/fuzz

install: build ## the command and its manual page, under PREFIX
	install -D -m 755 $(RINGMAIN) $(DESTDIR)$(PREFIX)/bin/ringmain
	$(RINGMAIN) man > $(TARGET)/ringmain.1
	install -D -m 644 $(TARGET)/ringmain.1 $(DESTDIR)$(PREFIX)/share/man/man1/ringmain.1

install-xen: install ## and what a Xen host needs: the hotplug script, the unit, and what keeps xen-netback away
	install -D -m 755 xen/vif-ringmain $(DESTDIR)/etc/xen/scripts/vif-ringmain
	install -D -m 644 xen/ringmain-modules.conf $(DESTDIR)/etc/modprobe.d/ringmain.conf
	install -d $(DESTDIR)/etc/modules-load.d $(DESTDIR)$(PREFIX)/lib/systemd/system
	printf '%s\n' xen-gntdev xen-gntalloc xen-evtchn xenfs tun > $(DESTDIR)/etc/modules-load.d/ringmain.conf
	sed 's|/usr/local/bin|$(PREFIX)/bin|' xen/ringmain.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/ringmain.service

clean:
	rm -rf out
	$(CARGO) clean
