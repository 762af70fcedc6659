#include "mp_server/forward/exchange.h"

#include <chrono>

#include "proto/config.pb.h"

namespace ems::server {

using std::chrono::milliseconds;
using std::chrono::seconds;

Exchange::Exchange(const config::ServerConfig& config, TieredStore* store,
                   const Ownership* ownership, MovedSlots* moved, const ExchangeMetrics& metrics)
    : store_(store),
      ownership_(ownership),
      sources_(seconds(config.forward().keep_s()), &Clock::System()) {
  const config::CopiesConfig& copies = config.copies();
  replicator_ =
      std::make_unique<Replicator>(Replicator::Options{.store = store,
                                                       .ownership = ownership,
                                                       .metrics = metrics.copies,
                                                       .queue_max = copies.queue_max(),
                                                       .bytes_per_s = copies.bytes_per_s(),
                                                       .repair_after = seconds(copies.repair_s())});
  store->dram().copies().SetSink(replicator_.get());
  if (moved == nullptr) return;
  const config::ForwardConfig& wanted = config.forward();
  forwarder_ =
      std::make_unique<Forwarder>(Forwarder::Options{.store = store,
                                                     .ownership = ownership,
                                                     .moved = moved,
                                                     .copies = &sources_,
                                                     .metrics = metrics.forward,
                                                     .timeout = milliseconds(wanted.timeout_ms()),
                                                     .pending_max = wanted.pending_max()});
  if (wanted.migrate_bytes_per_s() == 0) return;
  migrator_ =
      std::make_unique<Migrator>(Migrator::Options{.store = store,
                                                   .ownership = ownership,
                                                   .moved = moved,
                                                   .forwarder = forwarder_.get(),
                                                   .metrics = metrics.migrate,
                                                   .bytes_per_s = wanted.migrate_bytes_per_s()});
}

void Exchange::Start() {
  replicator_->Start();
  if (migrator_ != nullptr) migrator_->Start();
}

void Exchange::SetView(const DhtView& view) {
  if (forwarder_ == nullptr) return;
  forwarder_->SetNodes(view);
  store_->dram().copies().SeekUntil(sources_.SetView(view, ownership_->self()));
}

void Exchange::OnInstalled(ViewCache::View view) {
  if (view != nullptr && view->version() <= ownership_->version())
    replicator_->SetView(std::move(view));
  if (migrator_ != nullptr) migrator_->Poke();
}

void Exchange::Stop() {
  migrator_.reset();  // it asks by the next
  forwarder_.reset();
  replicator_->Stop();
}

}  // namespace ems::server
