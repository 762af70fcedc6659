#include "mp_server/kv_event_feed.h"

#include "common/check.h"
#include "common/logging.h"
#include "proto/config.pb.h"

namespace ems::server {
namespace {

constexpr uint32_t kDramPart = 0;
constexpr uint32_t kSsdPart = 1;

kv_events::EventPublisher::Options PublisherOptions(const config::KvEventsConfig& config) {
  kv_events::EventPublisher::Options options;
  options.sockets = {config.listen(), config.replay_listen(), config.waiting_max()};
  options.topic = config.topic();
  options.encoder.encoding =
      config.encoding() == "maps" ? kv_events::Encoding::kMaps : kv_events::Encoding::kArrays;
  options.encoder.hash_form =
      config.block_hash() == "int64" ? kv_events::HashForm::kNumber : kv_events::HashForm::kBytes;
  options.encoder.block_tokens = config.block_tokens();
  options.replay_batches = config.replay_batches();
  options.batch_every = std::chrono::milliseconds(config.batch_ms());
  options.heartbeat_every = std::chrono::milliseconds(config.heartbeat_ms());
  return options;
}

}  // namespace

std::unique_ptr<KvEventFeed> KvEventFeed::Make(const config::KvEventsConfig& config) {
  return config.listen().empty() ? nullptr : std::make_unique<KvEventFeed>(config);
}

KvEventFeed::KvEventFeed(const config::KvEventsConfig& config)
    : config_(std::make_unique<const config::KvEventsConfig>(config)),
      name_space_(config.name_space()),
      events_(config.queue_events()) {}

KvEventFeed::~KvEventFeed() = default;

Status KvEventFeed::Start(ObjectStore* dram, ssd::SsdTier* ssd,
                          const kv_events::EventMetrics& metrics) {
  EMS_CHECK(publisher_ == nullptr, "the feed is started twice");
  dram_ = dram;
  ssd_ = ssd;
  kv_events::EventPublisher::Options options = PublisherOptions(*config_);
  options.events = &events_;
  options.metrics = metrics;
  options.list = [this](kv_events::ListCursor* cursor, std::vector<kv_events::BlockEvent>* out) {
    return List(cursor, out);
  };
  auto started = kv_events::EventPublisher::Start(std::move(options));
  if (!started.ok()) return Prefixed(started.status(), "kv_events");
  publisher_ = *std::move(started);
  EMS_LOG(kInfo, "mp_server", "kv events of namespace {} on {}, missed ones on {}", name_space_,
          publisher_->address(),
          publisher_->replay_address().empty() ? "nothing" : publisher_->replay_address());
  return OkStatus();
}

bool KvEventFeed::SetNamespaces(const NamespaceTable& table) {
  const NamespaceInfo* info = table.Find(name_space_);
  const bool missing = info == nullptr && table.version != 0;
  if (missing && !missing_) {
    EMS_LOG(kWarn, "mp_server",
            "kv_events.name_space: there is no namespace {}, so no events are published until it "
            "is made",
            name_space_);
  } else if (missing_ && info != nullptr) {
    EMS_LOG(kInfo, "mp_server", "kv events of namespace {} begin: it exists now", name_space_);
  }
  missing_ = missing;
  const uint64_t now = info == nullptr ? kNone : Packed(info->ref);
  const uint64_t before = published_.exchange(now, std::memory_order_relaxed);
  return before != kNone && before != now;
}

void KvEventFeed::OnSsdTrusted() {
  if (announced_ || publisher_ == nullptr || ssd_ == nullptr) return;
  announced_ = true;
  publisher_->Announce();
}

bool KvEventFeed::List(kv_events::ListCursor* cursor, std::vector<kv_events::BlockEvent>* out) {
  const uint64_t published = published_.load(std::memory_order_relaxed);
  if (published == kNone) return false;
  const NamespaceRef ns{NamespaceId(static_cast<uint32_t>(published >> 32)),
                        static_cast<uint32_t>(published)};
  if (cursor->part == kDramPart) {
    hashes_.clear();
    if (!dram_->SomeHashes(ns, &cursor->shard, &cursor->place, &hashes_)) *cursor = {kSsdPart};
    for (const Hash128& hash : hashes_) out->push_back({hash, kv_events::Medium::kDram, true});
    return cursor->part == kDramPart || ssd_ != nullptr;
  }
  ssd::SsdIndex::Cursor at{cursor->shard, cursor->place, cursor->size};
  stored_.clear();
  const bool more = ssd_->SomeStored(&at, &stored_);
  *cursor = {kSsdPart, at.shard, at.bucket, at.buckets};
  for (const auto& [name, row] : stored_) {
    if (name.ns == ns) out->push_back({name.hash, kv_events::Medium::kSsd, true});
  }
  return more;
}

}  // namespace ems::server
