//! One vif: what its frontend and the toolstack write into the store, and what we do about it.
//!
//! The store is looked at again whenever anything in it changes, as a whole: what is to be done
//! follows from how things stand, not from what came before. That is why a daemon that was
//! restarted finds its way with the same few rules: both ends connected and no ring mapped means to
//! map them, whoever wrote those states.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hypervisor::store::Changes;
use hypervisor::{
    DomId, EventError, GrantError, GrantRef, Hypervisor, Lender, RemotePort, Store, StoreError,
    Watch,
};
use network::count::QueueCounters;
use network::fabric::{Fabric, FabricError, PortSpec};
use network::port::QueueError;
use network::topology::QueueId;
use ring::copies::{Copies, OwnPages, Status};
use ring::grant::Granted;
use ring::{Engine, Memory, Violation};
use switch::PortId;
use thiserror::Error;
use tracing::{info, warn};

use crate::netif::backend::{Gauge, Parts, Queue, Vif};
use crate::netif::cache::{Budget, Cache};
use crate::netif::control::Control;
use crate::netif::direct::{self, Direct, Lease, Standing, Uplink};
use crate::netif::extensions::Extensions;
use crate::netif::fault::Fault;
use crate::netif::groups::Groups;
use crate::netif::handshake::{Offer, Refusal, Request, wants_groups};
use crate::netif::mailbox::Mailbox;
use crate::netif::options::PortOptions;
use crate::netif::settings::{self, Settings, is_plugged};
use crate::netif::status::{Cached, Condition, VifStatus};
use crate::xenbus::State;

/// Shortest and longest pause before a frontend that broke the rules may connect again.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long to wait for a burst to be over.
const BURST: Duration = Duration::from_millis(1);

/// A vif's name: whose, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The domain that it belongs to.
    pub domain: DomId,
    /// Its number in that domain.
    pub handle: u32,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "vif{}.{}", self.domain, self.handle)
    }
}

/// What is to be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Token {
    /// Which vifs there are.
    All,
    /// One of them.
    One(Key),
}

/// What all vifs have in common.
pub struct Host {
    /// Where they come from.
    pub hypervisor: Hypervisor,
    /// Where their frames go.
    pub fabric: Arc<Fabric>,
    /// Who copies for them.
    pub engine: Arc<dyn Engine>,
    /// Who passes grants on to those that copy for themselves, where that is possible.
    pub lender: Option<Arc<dyn Lender>>,
    /// What waits to be looked at.
    pub changes: Changes<Token>,
    /// Queues that a vif may have.
    pub queues: u16,
    /// How long a frontend may go without posting buffers while frames for it come, before it
    /// counts as stalled.
    pub stall: Duration,
    /// How vifs are served, where there is a choice.
    pub options: PortOptions,
    /// Pages of all vifs that may stay mapped.
    pub budget: Arc<Budget>,
    /// A device that gives queues.
    pub uplink: Option<Arc<dyn Uplink>>,
    /// What was counted on ports that are gone, until somebody takes it.
    pub gone: Mutex<Vec<Arc<QueueCounters>>>,
}

impl Host {
    /// What it can do beyond netif.h.
    fn extensions(&self) -> Extensions {
        Extensions { ranges: true, guest_copy: self.lender.is_some() }
    }

    /// Removes a port, but not what was counted on it.
    fn remove_port(&self, port: PortId) {
        // Whoever holds this finds what was counted either with the port or here.
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.extend(self.fabric.counters(port));
        self.fabric.remove_port(port);
    }
}

/// The hypervisor's grants as those who copy want them.
#[derive(Debug)]
pub struct Copier(pub Arc<dyn hypervisor::Grants>);

impl Engine for Copier {
    fn run(&self, copies: &mut Copies) {
        if self.0.copy(copies).is_err() && copies.is_waiting() {
            copies.run(|mut batch| batch.fail(Status::REFUSED));
        }
    }

    fn own_pages(&self, len: usize) -> Option<OwnPages> {
        self.0.own_pages(len)
    }
}

/// Why a vif does not connect, or not any more.
#[derive(Debug, Error)]
pub enum Reason {
    /// Its frontend's keys are not accepted.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Its rings can't be mapped.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// Its event channels can't be bound.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The operator's settings make no sense, or the store can't be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The datapath refuses it.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The rings are nonsense from the start.
    #[error(transparent)]
    Ring(#[from] Violation),
    /// A queue's frontend broke the rules.
    #[error("queue {queue}: {error}")]
    Broken {
        /// Which queue.
        queue: u16,
        /// What it did.
        error: QueueError,
    },
    /// The frontend broke the rules in another way.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// Its control ring was misused.
    #[error("control ring: {0}")]
    Control(QueueError),
}

impl Reason {
    /// Whether it is neither the frontend's fault nor the operator's: the store is in trouble, and
    /// may recover.
    fn is_trouble(&self) -> bool {
        use StoreError::{Again, Lost, Protocol, Quota};
        let (Reason::Store(error) | Reason::Refused(Refusal::Store(error))) = self else {
            return false;
        };
        matches!(error, Lost(_) | Protocol(_) | Again | Quota { .. })
    }
}

/// A vif that is connected.
struct Connection {
    request: Request,
    vif: Arc<Vif>,
    /// Queues that are not in the datapath yet.
    ready: Vec<Queue>,
    queues: Vec<QueueId>,
    /// Its device queue, if it is not in the datapath yet, and how it stands with it.
    direct: Option<Direct>,
    standing: Option<Standing>,
    gauges: Vec<(Arc<Gauge>, Stall)>,
    mailbox: Option<Mailbox>,
    since: Instant,
    /// Somebody else served it before us.
    resumed: bool,
}

impl Connection {
    /// How the pages do that are kept, if any may be.
    fn cached(&self) -> Option<Cached> {
        let (pages, most) = self.mailbox.as_ref()?.cache().size();
        let (mut hits, mut misses) = (0, 0);
        for (gauge, _) in &self.gauges {
            hits += gauge.hits.get();
            misses += gauge.misses.get();
        }
        (most > 0).then_some(Cached { pages, most, hits, misses })
    }
}

/// Queues, and how the receiving of each goes.
type Made = (Vec<Queue>, Vec<(Arc<Gauge>, Stall)>);

/// A queue that was looked at for a while: whether it takes anything.
#[derive(Debug, Default)]
struct Stall {
    put: u64,
    full: u64,
    since: Option<Instant>,
}

impl Stall {
    /// Looks at the counters again; since when frames found no room and none was taken.
    fn look(&mut self, put: u64, full: u64, now: Instant) -> Option<Instant> {
        if put != self.put {
            self.since = None;
        } else if full != self.full {
            self.since.get_or_insert(now);
        }
        (self.put, self.full) = (put, full);
        self.since
    }
}

/// A vif.
pub struct Device {
    key: Key,
    host: Arc<Host>,
    back: String,
    front: String,
    /// Ended when it is dropped.
    _watches: Vec<Watch>,
    port: Option<PortId>,
    connection: Option<Connection>,
    /// What a worker found wrong with a queue.
    broken: Arc<Mutex<Option<(u16, QueueError)>>>,
    pause: Duration,
    /// No connection before then.
    not_before: Option<Instant>,
    /// A burst should be over then that a control message waits for.
    settles: Option<Instant>,
    settings: Option<Settings>,
    status: VifStatus,
    /// The store could not be asked the last time.
    in_trouble: bool,
}

impl Device {
    /// The vif whose backend directory is `back`. From now on its changes are noted.
    ///
    /// # Errors
    /// When the store can't be asked.
    pub fn new(host: Arc<Host>, key: Key, back: String) -> Result<Self, StoreError> {
        let store = &*host.hypervisor.store;
        let front = store.nodes().text(&format!("{back}/frontend"))?;
        let mut watches = Vec::new();
        for path in [&back, &front] {
            watches.push(host.changes.watch(store, path, Token::One(key))?);
        }
        info!(vif = %key, "found");
        Ok(Device {
            key,
            back,
            front,
            _watches: watches,
            port: None,
            connection: None,
            broken: Arc::default(),
            pause: PAUSE,
            not_before: None,
            settles: None,
            settings: None,
            status: VifStatus::new(key),
            in_trouble: false,
            host,
        })
    }

    /// How it is doing.
    pub fn status(&self) -> VifStatus {
        let mut status = self.status.clone();
        status.port = self.port;
        status.settings = self.settings.clone();
        if let Some(connection) = &self.connection {
            status.queues = connection.request.queues.len();
            status.takes = connection.request.takes;
            status.cache = connection.cached();
            status.direct = connection.standing.clone();
        }
        status
    }

    /// When it wants to be looked at even if nothing changes.
    pub fn wakes(&self) -> Option<Instant> {
        self.not_before.into_iter().chain(self.settles).min()
    }

    /// Whether its frontend is connected.
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Its control ring, to wait for.
    pub fn mailbox(&self) -> Option<&Mailbox> {
        self.connection.as_ref()?.mailbox.as_ref()
    }

    /// Looks at how things stand, and does what follows from it.
    pub fn look(&mut self, now: Instant) {
        self.not_before = self.not_before.filter(|until| *until > now);
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((queue, error)) = broken
            && self.connection.is_some()
        {
            self.stop(Reason::Broken { queue, error }, now);
        }
        match self.follow(now) {
            Ok(()) if std::mem::take(&mut self.in_trouble) => self.status.reason = None,
            Ok(()) => {}
            Err(reason) if reason.is_trouble() => self.bear(&reason, now),
            Err(reason) => self.stop(reason, now),
        }
    }

    /// The store can't be asked: everything stays as it is, traffic goes on, and it is tried again
    /// in a while.
    fn bear(&mut self, reason: &Reason, now: Instant) {
        if !std::mem::replace(&mut self.in_trouble, true) {
            warn!(vif = %self.key, %reason, "the store is in trouble");
            self.status.reason = Some(reason.to_string());
        }
        self.not_before = Some(now + LONGEST_PAUSE);
    }

    fn store(&self) -> &dyn Store {
        &*self.host.hypervisor.store
    }

    /// What the states of both ends ask for.
    fn follow(&mut self, now: Instant) -> Result<(), Reason> {
        let nodes = self.host.hypervisor.store.clone();
        let nodes = nodes.nodes();
        let (own, front) = (State::read(nodes, &self.back)?, State::read(nodes, &self.front)?);
        match (own, front) {
            // Nobody is there to make it anew for.
            (State::Unknown, _) => self.disconnect("its backend is gone"),
            (State::Initialising, _) => {
                self.disconnect("it starts anew");
                self.offer()?;
            }
            (_, State::Connected) if self.connection.is_some() => self.check(nodes)?,
            (State::InitWait | State::Initialised | State::Connected, State::Connected) => {
                self.connect(now)?
            }
            (_, State::Initialised | State::Connected) => {}
            (_, State::Initialising | State::InitWait) => {
                self.disconnect("its frontend starts anew");
                if !self.is_online()? && own != State::InitWait {
                    self.set_state(own, State::Closed)?;
                } else if own != State::InitWait {
                    self.offer()?;
                } else {
                    self.offer_again(nodes)?;
                }
            }
            (_, State::Closing) => {
                self.disconnect("its frontend closes");
                self.set_state(own, if own == State::Closed { own } else { State::Closing })?;
            }
            (_, State::Closed | State::Unknown) => {
                self.disconnect("its frontend is closed");
                self.set_state(own, State::Closed)?;
            }
        }
        Ok(())
    }

    /// How many queues the operator wants it to have.
    fn wanted(&self) -> Result<u16, StoreError> {
        let wanted =
            self.store().nodes().number::<u16>(&format!("{}/ringmain/queues", self.back))?;
        Ok(wanted.filter(|queues| *queues > 0).unwrap_or(self.host.queues).min(self.host.queues))
    }

    /// Says what is offered, and waits.
    fn offer(&mut self) -> Result<(), StoreError> {
        let (queues, gives) = (self.wanted()?, self.host.uplink.is_some());
        let extensions =
            settings::extensions(self.store().nodes(), &self.back)?.and(self.host.extensions());
        let place = format!("{}/{}", self.back, direct::PLACE);
        let (back, out_of_date) =
            (&self.back, [steering_node(&self.back), first_offer_node(&self.back), place]);
        self.tell(State::InitWait, |nodes| {
            for node in &out_of_date {
                match nodes.remove(node) {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                }
            }
            Offer { queues, extensions }.write(nodes, back)?;
            match gives {
                true => nodes.put(&format!("{back}/{}", direct::OFFER), 1),
                false => Ok(()),
            }
        })
    }

    /// The hotplug script, which says how many queues the operator wants, runs only when an offer
    /// stands already. A guest that is just being made reads the offer later; one that runs may
    /// have read it, so what it asks for after the first offer is not held against it.
    fn offer_again(&self, nodes: &dyn hypervisor::Nodes) -> Result<(), StoreError> {
        let (before, queues) = (self.offered()?.queues, self.wanted()?);
        let node = first_offer_node(&self.back);
        if nodes.find(&node)?.is_some() || before == queues {
            return Ok(());
        }
        nodes.put(&node, before)?;
        nodes.put(&format!("{}/multi-queue-max-queues", self.back), queues)
    }

    fn set_state(&self, own: State, state: State) -> Result<(), StoreError> {
        if own == state { Ok(()) } else { self.tell(state, |_| Ok(())) }
    }

    /// Writes our state, and `more` with it; unless the toolstack has taken our directory away, and
    /// does not want it back.
    fn tell(
        &self,
        state: State,
        mut more: impl FnMut(&dyn hypervisor::Nodes) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let path = format!("{}/state", self.back);
        hypervisor::transaction(self.store(), |nodes| {
            if nodes.find(&path)?.is_none() {
                return Ok(());
            }
            more(nodes)?;
            nodes.put(&path, state.number())
        })
    }

    /// Whether the toolstack wants the device to stay.
    fn is_online(&self) -> Result<bool, StoreError> {
        Ok(self
            .store()
            .nodes()
            .number::<u8>(&format!("{}/online", self.back))?
            .is_none_or(|online| online != 0))
    }

    /// What was offered to the frontend.
    fn offered(&self) -> Result<Offer, StoreError> {
        let number = |node: &str| self.store().nodes().number::<u16>(node);
        let now = number(&format!("{}/multi-queue-max-queues", self.back))?.unwrap_or(1);
        let first = number(&first_offer_node(&self.back))?.unwrap_or(0);
        let extensions = Extensions::offered(self.store().nodes(), &self.back)?;
        Ok(Offer { queues: now.max(first), extensions })
    }

    /// A connected frontend's keys: those that it connected with have to stay.
    fn check(&mut self, nodes: &dyn hypervisor::Nodes) -> Result<(), Reason> {
        let offer = self.offered()?;
        let Some(connection) = &self.connection else { return Ok(()) };
        // Those that it told somebody else of are not known.
        connection.vif.groups.set_only(wants_groups(nodes, &self.front)? && !connection.resumed);
        let same = Request::read(nodes, &self.front, offer)
            .is_ok_and(|request| request == connection.request);
        // It may have left that state meanwhile.
        if !same && State::read(nodes, &self.front)? == State::Connected {
            return Err(Fault::KeysChanged.into());
        }
        Ok(())
    }

    /// Maps the frontend's rings, and gets its queues ready for the datapath.
    fn connect(&mut self, now: Instant) -> Result<(), Reason> {
        let store = self.host.hypervisor.store.clone();
        let nodes = store.nodes();
        if !is_plugged(nodes, &self.back)? {
            return Ok(());
        }
        if self.not_before.is_some() {
            return Ok(());
        }
        let own = State::read(nodes, &self.back)?;
        let resumed = own == State::Connected;
        let settings = Settings::read(nodes, &self.back)?;
        let request = Request::read(nodes, &self.front, self.offered()?)?;
        let port = self.port(&settings)?;
        let vif = self.vif(&request, &settings, resumed)?;
        let cache = self.cache(&request);
        let (ready, gauges) = self.queues(&request, &vif, &cache, resumed)?;
        let mailbox = self.new_mailbox(&request, port, cache, resumed)?;
        let (direct, standing) = self.direct(&request)?;
        info!(vif = %self.key, queues = ready.len(), resumed, "connected");
        self.connection = Some(Connection {
            request,
            vif,
            ready,
            queues: Vec::new(),
            direct,
            standing,
            gauges,
            mailbox,
            since: now,
            resumed,
        });
        self.settings = Some(settings);
        self.status.condition = Condition::Connected;
        self.status.connections += 1;
        self.clear_error();
        self.set_state(own, State::Connected)?;
        // What came into the control ring before.
        self.work(now);
        Ok(())
    }

    /// What all queues of the frontend have in common.
    fn vif(
        &self,
        request: &Request,
        settings: &Settings,
        resumed: bool,
    ) -> Result<Arc<Vif>, Reason> {
        let vif = Vif {
            domain: self.key.domain,
            engine: Arc::clone(&self.host.engine),
            takes: request.takes,
            rate: settings.rate(),
            groups: Groups::default(),
            align: self.host.options.align,
            lender: self.host.lender.clone().filter(|_| request.takes.extensions.guest_copy),
            held: AtomicBool::new(true),
        };
        vif.groups.set_only(wants_groups(self.store().nodes(), &self.front)? && !resumed);
        Ok(Arc::new(vif))
    }

    /// Its queues, over its rings and channels, and how their receiving goes.
    fn queues(
        &self,
        request: &Request,
        vif: &Arc<Vif>,
        cache: &Cache,
        resumed: bool,
    ) -> Result<Made, Reason> {
        let mut made = Made::default();
        for (n, keys) in (0..).zip(&request.queues) {
            let gauge = Arc::<Gauge>::default();
            let parts = Parts {
                tx_ring: self.map(keys.tx_ring)?,
                rx_ring: self.map(keys.rx_ring)?,
                tx_channel: self.bind(keys.tx_port)?,
                rx_channel: keys.rx_port.map(|port| self.bind(port)).transpose()?,
                vif: Arc::clone(vif),
                gauge: Arc::clone(&gauge),
                shelf: cache.shelf(n).ok().filter(|_| cache.size().1 > 0).cloned(),
                resumed,
            };
            made.0.push(Queue::new(parts)?);
            made.1.push((gauge, Stall::default()));
        }
        Ok(made)
    }

    /// Its control ring, if it has one. From now on that says which queues of `port` its frames go
    /// to.
    fn new_mailbox(
        &self,
        request: &Request,
        port: PortId,
        cache: Cache,
        resumed: bool,
    ) -> Result<Option<Mailbox>, Reason> {
        let Some((ring, channel)) = request.control else { return Ok(None) };
        let (page, channel) = (self.map(ring)?, self.bind(channel)?);
        let queues = request.queues.len() as u16;
        let saved =
            if resumed { self.store().nodes().find(&steering_node(&self.back))? } else { None };
        let saved = saved.and_then(|text| Control::restore(queues, &text));
        let control = saved.unwrap_or_else(|| Control::new(queues));
        self.host.fabric.set_selector(port, control.steering());
        let engine = Arc::clone(&self.host.engine);
        Ok(Some(Mailbox::new(page, channel, self.key.domain, engine, (control, cache))?))
    }

    /// Room for pages that are kept of a frontend: none without a control ring, by which it would
    /// say which. What another daemon has kept is forgotten: then copies go by grants again.
    fn cache(&self, request: &Request) -> Cache {
        let most = if request.control.is_some() { self.host.options.cache.into() } else { 0 };
        let (grants, budget) =
            (Arc::clone(&self.host.hypervisor.grants), Arc::clone(&self.host.budget));
        Cache::new(self.key.domain, grants, most, request.queues.len() as u16, budget)
    }

    /// Hands its queues to the datapath, if they are not there yet. They only receive until
    /// [`go`](Self::go).
    pub fn attach(&mut self) {
        let (Some(connection), Some(port)) = (&mut self.connection, self.port) else { return };
        let attach = |(index, queue)| self.host.fabric.attach(port, index, Box::new(queue), true);
        connection.queues.extend((0..).zip(connection.ready.drain(..)).filter_map(attach));
        if let Some(direct) = connection.direct.take() {
            // Behind all others. Nobody else puts anything into its ring.
            let index = connection.request.queues.len() as u16;
            connection.queues.extend(self.host.fabric.attach(port, index, Box::new(direct), false));
        }
    }

    /// Lets its queues send. To be called when all vifs that were found together are attached: who
    /// was served before may have frames in its rings for another.
    pub fn go(&self) {
        if let Some(connection) = &self.connection {
            connection.vif.held.store(false, Ordering::Relaxed);
        }
    }

    /// Its port in the datapath, made when it is first needed.
    fn port(&mut self, settings: &Settings) -> Result<PortId, FabricError> {
        let changed = self
            .settings
            .as_ref()
            .is_some_and(|old| (&old.rule, old.mtu) != (&settings.rule, settings.mtu));
        if let Some(port) = self.port {
            if !changed {
                return Ok(port);
            }
            self.host.remove_port(port);
            self.port = None;
        }
        let (broken, changes, key) =
            (Arc::clone(&self.broken), self.host.changes.clone(), self.key);
        let on_error = Arc::new(move |queue, error| {
            broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((queue, error));
            changes.add(Token::One(key));
        });
        let PortOptions { coalescing, policy, .. } = self.host.options;
        let (rule, mtu) = (settings.rule.clone(), settings.mtu);
        let port =
            self.host.fabric.add_port(PortSpec { rule, mtu, on_error, coalescing, policy })?;
        self.port = Some(port);
        Ok(port)
    }

    /// The device queue that the frontend asks for, if it does, and how it stands with it. That
    /// there is none is no reason not to connect: what would come through it comes through the
    /// switch.
    fn direct(&self, request: &Request) -> Result<(Option<Direct>, Option<Standing>), Reason> {
        let Some(keys) = &request.direct else { return Ok((None, None)) };
        let pages = self.listed(keys)?;
        let memory = self.host.hypervisor.grants.map(self.key.domain, &pages)?;
        let (direct, standing) = match self.lease(memory, keys.pages) {
            Ok(lease) => {
                let (ring, channel) = (self.map(keys.ring)?, self.bind(keys.port)?);
                let direct = Direct::new(direct::Parts { ring, channel, lease, pages })?;
                let standing = direct.standing();
                (Some(direct), standing)
            }
            Err(error) => (None, Standing::Refused(error.to_string())),
        };
        let said = match &standing {
            Standing::Given { place, .. } => place.clone(),
            Standing::Refused(why) => {
                warn!(vif = %self.key, %why, "no device queue");
                format!("none: {why}")
            }
        };
        self.store().nodes().put(&format!("{}/{}", self.back, direct::PLACE), said)?;
        Ok((direct, Some(standing)))
    }

    /// The grants of the pages that a device is to write into.
    fn listed(&self, keys: &direct::Keys) -> Result<Vec<GrantRef>, Reason> {
        let at = Granted { domain: self.key.domain, reference: keys.list, offset: 0 };
        let bytes = ring::grant_copy_batch::read(
            &*self.host.engine,
            at,
            keys.pages as usize * size_of::<u32>(),
        );
        let bytes = bytes
            .ok_or(GrantError::Refused { domain: self.key.domain, references: vec![keys.list] })?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_le_bytes);
        Ok(bytes.chunks(size_of::<u32>()).map(|bytes| GrantRef(number(bytes))).collect())
    }

    /// A queue of the device, that writes into these pages what is for the vif's address.
    fn lease(
        &self,
        pages: Arc<Memory>,
        count: u32,
    ) -> Result<Box<dyn Lease>, Box<dyn Error + Send + Sync>> {
        let uplink = self.host.uplink.as_ref().ok_or("no device gives queues")?;
        let mac = self.store().nodes().text(&format!("{}/mac", self.back))?;
        uplink.give(mac.parse()?, pages, count)
    }

    fn map(&self, ring: GrantRef) -> Result<Arc<Memory>, GrantError> {
        self.host.hypervisor.grants.map(self.key.domain, &[ring])
    }

    fn bind(&self, port: RemotePort) -> Result<Box<dyn hypervisor::Channel>, EventError> {
        self.host.hypervisor.events.bind(self.key.domain, port)
    }

    /// Takes its queues out of the datapath, and lets go of all that was mapped of its frontend.
    fn disconnect(&mut self, why: &str) {
        let Some(connection) = self.connection.take() else { return };
        if let Some(port) = self.port {
            self.host.fabric.set_selector(port, None);
        }
        for queue in connection.queues {
            drop(self.host.fabric.detach(queue));
        }
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.status.condition = Condition::Waiting;
        info!(vif = %self.key, %why, "disconnected");
    }

    /// The vif cannot go on: everybody learns why.
    fn stop(&mut self, reason: Reason, now: Instant) {
        // A domain that is destroyed takes its grants along before its directories.
        if is_departure(&reason)
            || State::read(self.store().nodes(), &self.front).ok() == Some(State::Unknown)
        {
            self.disconnect("its domain is gone");
            return;
        }
        let lasted = self
            .connection
            .as_ref()
            .map(|connection| now.saturating_duration_since(connection.since));
        if lasted.is_some_and(|lasted| lasted > LONGEST_PAUSE) {
            self.pause = PAUSE;
        }
        self.disconnect("it is stopped");
        let words = reason.to_string();
        warn!(vif = %self.key, reason = %words, "stopped");
        self.status.condition = Condition::Stopped;
        self.status.violations += 1;
        self.status.reason = Some(words.clone());
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        let node = self.error_node();
        if let Err(error) = self.tell(State::Closing, |nodes| nodes.put(&node, &words)) {
            warn!(vif = %self.key, %error, "could not say so in the store");
        }
    }

    /// Where toolstacks look for what went wrong.
    fn error_node(&self) -> String {
        let own = format!("/local/domain/{}/", self.host.hypervisor.domain);
        let device = self.back.strip_prefix(&own).unwrap_or(&self.back);
        format!("{own}error/{device}/error")
    }

    fn clear_error(&mut self) {
        self.status.reason = None;
        let node = self.error_node();
        // What can't be removed may stay: it is out of date, no more.
        if let Some((directory, _)) = node.rsplit_once('/') {
            let _ = self.store().nodes().remove(directory);
        }
    }

    /// Obeys what came through the control ring.
    pub fn work(&mut self, now: Instant) {
        self.settles = None;
        let Some(mailbox) =
            self.connection.as_mut().and_then(|connection| connection.mailbox.as_mut())
        else {
            return;
        };
        let worked = mailbox.work(now);
        self.settles = mailbox.is_waiting().then(|| now + BURST);
        match worked {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => return self.stop(Reason::Control(error), now),
        }
        // In force, and kept, before the frontend has its answers.
        let (control, steering) = (mailbox.control(), steering_node(&self.back));
        if let Some(port) = self.port {
            self.host.fabric.set_selector(port, control.steering());
        }
        if let Err(error) = self.host.hypervisor.store.nodes().put(&steering, control.save()) {
            warn!(vif = %self.key, %error, "could not keep what steers its frames");
        }
        match mailbox.answer() {
            Ok(true) => self.host.changes.add(Token::One(self.key)),
            Ok(false) => {}
            Err(error) => self.stop(Reason::Control(error), now),
        }
    }

    /// To be called now and then: finds out whether the frontend takes what comes.
    pub fn watch(&mut self, now: Instant) {
        let Some(connection) = &mut self.connection else { return };
        let looks = connection
            .gauges
            .iter_mut()
            .map(|(gauge, stall)| stall.look(gauge.put.get(), gauge.full.get(), now));
        // The longest of all queues: one is enough, a flow that is meant for it gets nowhere.
        let since = looks.flatten().min();
        let stalled =
            since.is_some_and(|since| now.saturating_duration_since(since) >= self.host.stall);
        let condition = if stalled { Condition::Stalled } else { Condition::Connected };
        if std::mem::replace(&mut self.status.condition, condition) != condition {
            match stalled {
                true => warn!(vif = %self.key, "stalled: it posts no buffers"),
                false => info!(vif = %self.key, "takes frames again"),
            }
        }
    }
}

/// Where it is kept what a frontend has said through its control ring: that is in no ring, and
/// whoever serves it next has to know.
fn steering_node(back: &str) -> String {
    format!("{back}/ringmain/steering")
}

/// Where it is kept how many queues were offered before the hotplug script had its say, if that was
/// another number.
fn first_offer_node(back: &str) -> String {
    format!("{back}/ringmain/first-offer")
}

/// Whether it is not a fault of the frontend's, but the end of its domain.
fn is_departure(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::Broken { error: QueueError::Gone | QueueError::Grant(Status::BAD_DOMAIN), .. }
            | Reason::Control(QueueError::Gone | QueueError::Grant(Status::BAD_DOMAIN))
    )
}

impl Drop for Device {
    fn drop(&mut self) {
        self.disconnect("it is let go");
        if let Some(port) = self.port {
            self.host.remove_port(port);
        }
    }
}
