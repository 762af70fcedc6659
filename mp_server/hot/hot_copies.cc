#include "mp_server/hot/hot_copies.h"

#include "proto/config.pb.h"

namespace ems::server {
namespace {

// The part of what a network card moves that makes one object hot.
constexpr double kHotPartOfNic = 1.0 / 8;

HotCopier::Options With(HotCopier::Options options, HotKeys* keys, HotGuests* guests) {
  options.keys = keys;
  options.guests = guests;
  return options;
}

}  // namespace

std::unique_ptr<HotCopies> HotCopies::Make(const config::HotConfig& config, TieredStore* store,
                                           const Ownership* ownership, ViewCache* views,
                                           const HotMetrics& metrics) {
  if (config.copies() == 0) return nullptr;
  const Duration keep_for = std::chrono::seconds(config.keep_s());
  HotCopier::Options options;
  options.store = store;
  options.ownership = ownership;
  options.views = views;
  options.metrics = metrics;
  options.hot = {.reads_per_s = static_cast<double>(config.reads_per_s()),
                 .bytes_per_s = static_cast<double>(config.nic_bytes_per_s()) * kHotPartOfNic,
                 .copies = config.copies(),
                 .keep_for = keep_for};
  options.bytes_per_s = config.send_bytes_per_s();
  return std::make_unique<HotCopies>(options, keep_for);
}

HotCopies::HotCopies(const HotCopier::Options& options, Duration keep_for)
    : guests_(options.store, options.ownership, keep_for, options.clock),
      copier_(With(options, &keys_, &guests_)) {
  copier_.Start();
}

}  // namespace ems::server
