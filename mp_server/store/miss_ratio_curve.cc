#include "mp_server/store/miss_ratio_curve.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace ems::server {
namespace {

constexpr size_t kPlacesLeast = 128;

// Empty values take something, too.
uint64_t SizeOf(uint64_t bytes) { return std::clamp<uint64_t>(bytes, 1, uint64_t{1} << 48); }

}  // namespace

MissRatioCurve::MissRatioCurve() { Forget(); }

double MissRatioCurve::weight() const {
  return 0x1p64 / static_cast<double>(std::max<uint64_t>(below_, 1));
}

size_t MissRatioCurve::BucketOf(uint64_t bytes) {
  const uint64_t at_least = std::max<uint64_t>(bytes, uint64_t{1} << kPartsLog2);
  const size_t power = static_cast<size_t>(std::bit_width(at_least)) - 1;
  const size_t part = (at_least >> (power - kPartsLog2)) - (size_t{1} << kPartsLog2);
  return (power << kPartsLog2) + part;
}

double MissRatioCurve::BucketStart(size_t bucket) {
  const size_t parts = size_t{1} << kPartsLog2;
  const double power = static_cast<double>(uint64_t{1} << std::min<size_t>(bucket / parts, 63));
  return power * (1 + static_cast<double>(bucket % parts) / static_cast<double>(parts));
}

void MissRatioCurve::AddAt(size_t position, uint64_t bytes) {
  for (size_t i = position + 1; i <= sums_.size(); i += i & (~i + 1)) sums_[i - 1] += bytes;
}

uint64_t MissRatioCurve::BytesUpTo(size_t position) const {
  uint64_t bytes = 0;
  for (size_t i = position + 1; i > 0; i &= i - 1) bytes += sums_[i - 1];
  return bytes;
}

void MissRatioCurve::PutOnTop(Keys::value_type* key) {
  if (next_ == order_.size()) Renumber();
  key->second.position = static_cast<uint32_t>(next_);
  order_[next_] = key;
  AddAt(next_, key->second.bytes);
  bytes_ += key->second.bytes;
  ++next_;
}

void MissRatioCurve::TakeOut(const Value& value) {
  order_[value.position] = nullptr;
  AddAt(value.position, ~value.bytes + 1);
  bytes_ -= value.bytes;
}

// Closes the gaps. Of twice as many places as there are keys, half are free again.
void MissRatioCurve::Renumber() {
  std::erase(order_, nullptr);
  oldest_ = 0;
  next_ = order_.size();
  const size_t places = std::clamp(std::bit_ceil(2 * next_), kPlacesLeast, 2 * kKeysMax);
  order_.resize(places, nullptr);
  sums_.assign(places, 0);
  for (size_t i = 0; i < next_; ++i) {
    order_[i]->second.position = static_cast<uint32_t>(i);
    sums_[i] = order_[i]->second.bytes;
  }
  for (size_t i = 1; i <= places; ++i) {
    const size_t parent = i + (i & (~i + 1));
    if (parent <= places) sums_[parent - 1] += sums_[i - 1];
  }
}

void MissRatioCurve::Erase(Keys::iterator key) {
  TakeOut(key->second);
  keys_.erase(key);
}

void MissRatioCurve::SampleBelow(uint64_t below) {
  below_ = below;
  while (!keys_.empty() && std::prev(keys_.end())->first >= below) Erase(std::prev(keys_.end()));
}

// For good: what makes it necessary comes again.
void MissRatioCurve::SampleHalf() {
  if (below_ > kBelowLeast) SampleBelow(below_most_ = std::max(below_ / 2, kBelowLeast));
}

void MissRatioCurve::BoundLooks(TimePoint now) {
  const double seconds = std::chrono::duration<double>(now - looks_from_).count();
  if (seconds < 1) return;
  looks_from_ = now;
  auto looks = static_cast<double>(std::exchange(looks_, 0));
  for (; looks > kLooksMost * seconds && keys_.size() > kKeysEnough; looks /= 2) SampleHalf();
}

void MissRatioCurve::Track(uint64_t hash, uint64_t bytes) {
  const auto [key, is_new] = keys_.try_emplace(hash);
  if (!is_new) TakeOut(key->second);
  key->second.bytes = SizeOf(bytes);
  PutOnTop(&*key);
  Trim();
  if (keys_.size() > kKeysMax) SampleBelow(std::prev(keys_.end())->first);
}

void MissRatioCurve::Trim() {
  while (keys_.size() > 1 && static_cast<double>(bytes_) * weight() > bytes_kept_) {
    while (order_[oldest_] == nullptr) ++oldest_;
    Erase(keys_.find(order_[oldest_]->first));
  }
}

bool MissRatioCurve::Reuse(uint64_t hash) {
  if (hash >= below_) return true;
  const auto key = keys_.find(hash);
  ++looks_;
  if (key == keys_.end()) return false;
  const Value& value = key->second;
  const uint64_t younger = bytes_ - BytesUpTo(value.position);
  const double needed = static_cast<double>(younger) * weight() + static_cast<double>(value.bytes);
  reuses_[BucketOf(static_cast<uint64_t>(std::min(needed, 0x1p62)))] += weight();
  counted_ += weight();
  ++samples_;
  TakeOut(value);
  PutOnTop(&*key);
  return true;
}

void MissRatioCurve::First(uint64_t hash, std::optional<uint64_t> bytes) {
  if (hash >= below_) return;
  if (bytes) {
    unknown_ += weight();
    return Track(hash, *bytes);
  }
  counted_ += weight();
  ++samples_;
}

void MissRatioCurve::Store(uint64_t hash, uint64_t bytes) {
  if (hash < below_) Track(hash, bytes);
}

void MissRatioCurve::Remove(uint64_t hash) {
  if (const auto key = keys_.find(hash); key != keys_.end()) Erase(key);
}

void MissRatioCurve::Count(uint64_t lookups, uint64_t hits) {
  lookups_ += static_cast<double>(lookups);
  hits_ += static_cast<double>(hits);
}

void MissRatioCurve::Advance(uint64_t memory_bytes, TimePoint now) {
  if (memory_bytes > 0) bytes_kept_ = kMemoriesKept * static_cast<double>(memory_bytes);
  Trim();
  if (losing_) {
    lossy_ = true;
    losing_ = false;
    SampleHalf();
  }
  BoundLooks(now);
  if (decayed_at_ == TimePoint()) decayed_at_ = now;
  if (now < decayed_at_ + kHalfLife) return;
  decayed_at_ = now;
  Decay();
}

void MissRatioCurve::Decay() {
  for (double& reuses : reuses_) reuses /= 2;
  for (double* count : {&counted_, &unknown_, &lookups_, &hits_, &samples_}) *count /= 2;
  const bool may_sample_more = !std::exchange(lossy_, false) && below_ < below_most_;
  if (!may_sample_more || keys_.size() >= kKeysMax / 4) return;
  // Values have become fewer. Of keys that were not sampled nothing is known: begin again.
  below_ = below_ > below_most_ / 2 ? below_most_ : below_ * 2;
  Forget();
}

void MissRatioCurve::Forget() {
  keys_.clear();
  order_.clear();
  bytes_ = 0;
  Renumber();
  reuses_.fill(0);
  counted_ = unknown_ = lookups_ = hits_ = samples_ = 0;
}

double MissRatioCurve::HitRate(uint64_t memory_bytes) const {
  const size_t last = BucketOf(memory_bytes);
  double hits = 0;
  for (size_t i = 0; i < last; ++i) hits += reuses_[i];
  const double start = BucketStart(last);
  const double part = (static_cast<double>(memory_bytes) - start) / (BucketStart(last + 1) - start);
  hits += reuses_[last] * std::clamp(part, 0.0, 1.0);
  // Sampled keys are looked up more or less often than others: mostly a few hot ones, which are
  // there with little memory.
  const double missing = lossy_ ? 0 : lookups_ - unknown_ - counted_;
  const double all = counted_ + missing;
  return all <= 0 ? 0 : std::clamp((hits + missing) / all, 0.0, 1.0);
}

}  // namespace ems::server
