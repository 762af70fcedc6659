#include "mp_controller/quota_parts.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace ems::controller {
namespace {

// Of the relative difference of a server's age from the mean. An age follows its part no faster
// than time passes: where rounds are short against it, a larger gain moves more than the age has
// shown, and parts swing. Found by simulation: with four, steep traces are followed less closely;
// with a gain that does not depend on time, cyclic traces lose half of their hits. With steps four
// times as large a replay of some seconds ends while parts swing, at half a point and more below
// even parts.
constexpr double kGainMost = 0.125;
constexpr double kGainOfTime = 8;
constexpr double kStepMost = 1.0 / 32;
// Ages as close as this are the same: the coldest object of a server is one of many.
constexpr double kSameAge = 1.0 / 64;
// One that has got more has to fill it first: until then its age says nothing of it.
constexpr uint64_t kFullShare = 32;
// A part stays between this and twice what the slots give: values that fit keep fitting, and a
// server that has been idle can still take its keys.
constexpr uint64_t kEvenShare = 2;
constexpr double kNothingToLose = 1e12;  // seconds

double AgeSeconds(const HeldPart& server) {
  if (server.coldest_age <= Duration::zero()) return kNothingToLose;
  return std::chrono::duration<double>(server.coldest_age).count();
}

bool IsFull(const HeldPart& server) {
  return server.used_bytes >= server.part_bytes - server.part_bytes / kFullShare;
}

// The age of all together: where each part's bytes are spread evenly over its age.
double MeanAge(std::span<const HeldPart> servers) {
  double bytes = 0, bytes_a_second = 0;
  for (const HeldPart& server : servers) {
    bytes += static_cast<double>(server.part_bytes);
    bytes_a_second += static_cast<double>(server.part_bytes) / AgeSeconds(server);
  }
  return bytes_a_second == 0 ? 0 : bytes / bytes_a_second;
}

// How much more, or less, a server should have after this round.
double Wanted(const HeldPart& server, double mean_age, double gain) {
  const double age = AgeSeconds(server), part = static_cast<double>(server.part_bytes);
  const auto least = static_cast<double>(server.least_bytes);
  const double most = std::max(least, static_cast<double>(server.most_bytes));
  if (part > most) return -std::min(part - most, part * kStepMost);
  if (std::abs(mean_age - age) <= kSameAge * mean_age) return 0;
  const double change = part * std::clamp(gain * (mean_age - age) / age, -kStepMost, kStepMost);
  if (change < 0) return std::min(0.0, std::max(change, least - part));
  return IsFull(server) ? std::max(0.0, std::min(change, most - part)) : 0;
}

uint64_t EvenPart(uint64_t bytes, double share) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * share);
}

}  // namespace

std::vector<uint64_t> NextParts(uint64_t quota_bytes, Duration since_last,
                                std::span<const HeldPart> servers) {
  const double mean_age = MeanAge(servers);
  const double time_s = std::chrono::duration<double>(since_last).count();
  const double gain = mean_age == 0 ? 0 : std::min(kGainMost, kGainOfTime * time_s / mean_age);
  std::vector<uint64_t> parts;
  std::vector<double> wanted;
  uint64_t sum = 0;
  double more = 0, less = 0;
  for (const HeldPart& server : servers) {
    parts.push_back(server.part_bytes);
    sum += server.part_bytes;
    wanted.push_back(Wanted(server, mean_age, gain));
    (wanted.back() > 0 ? more : less) += std::abs(wanted.back());
  }
  uint64_t room = quota_bytes - std::min(quota_bytes, sum);  // that nobody holds
  const double moved = std::min(more, less + static_cast<double>(room));
  const double taken = std::max(0.0, moved - static_cast<double>(room));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (wanted[i] >= 0 || less == 0) continue;
    const auto gives = static_cast<uint64_t>(-wanted[i] * taken / less);
    parts[i] -= gives;
    room += gives;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (wanted[i] <= 0) continue;
    const auto gets = std::min(room, static_cast<uint64_t>(wanted[i] * moved / more));
    parts[i] += gets;
    room -= gets;
  }
  return parts;
}

std::vector<QuotaPart> QuotaParts::OnHeartbeat(NodeId id, ViewVersion installed,
                                               const NodeUsage& usage, const DhtView& view,
                                               const NamespaceRegistry& namespaces, TimePoint now) {
  if (view.version() != view_) StartOver(view);
  if (table_ == nullptr || table_->version != namespaces.version()) TakeTable(namespaces);
  if (installed != view_ || !slots_.contains(id)) return {};
  heard_.insert(id);
  std::vector<QuotaPart> answer;
  for (const QuotaPart& said : usage.quota_parts) {
    const NamespaceInfo* const info = Find(said);
    if (info == nullptr) continue;
    Round& round = rounds_[said.ref];
    if (round.quota_bytes != said.quota_bytes) round = {said.quota_bytes, std::nullopt, {}};
    const auto [place, is_new] = round.members.try_emplace(id);
    Member& member = place->second;
    if (is_new || !round.begun_at) member.told_bytes = said.part_bytes;
    member.said = said;
    member.dram_bytes = usage.dram_total_bytes;
    member.fresh = true;
    if (heard_.size() == slots_.size()) BeginRound(*info, now, &round);
    const uint64_t told = member.told_bytes;
    if (told < said.part_bytes || (told > said.part_bytes && AllHaveGiven(round)))
      answer.push_back({.ref = said.ref, .quota_bytes = said.quota_bytes, .part_bytes = told});
  }
  return answer;
}

bool QuotaParts::AllHaveGiven(const Round& round) {
  return std::ranges::all_of(round.members, [](const auto& one) {
    const Member& member = one.second;
    return std::max(member.said.part_bytes, member.said.used_bytes) <= member.told_bytes;
  });
}

const NamespaceInfo* QuotaParts::Find(const QuotaPart& said) const {
  const auto known = table_->by_id.find(said.ref.id);
  const bool same = known != table_->by_id.end() && known->second.ref == said.ref &&
                    known->second.dram_quota_bytes == said.quota_bytes;
  return same && said.quota_bytes > 0 ? &known->second : nullptr;
}

void QuotaParts::TakeTable(const NamespaceRegistry& namespaces) {
  table_ = namespaces.Snapshot();
  std::erase_if(rounds_, [&](const auto& one) {
    const auto known = table_->by_id.find(one.first.id);
    return known == table_->by_id.end() || known->second.ref != one.first;
  });
}

void QuotaParts::StartOver(const DhtView& view) {
  view_ = view.version();
  rounds_.clear();
  heard_.clear();
  slots_.clear();
  for (const NodeInfo& node : view.nodes()) {
    const uint32_t slots = view.slots().CountOf(node.id);
    if (slots > 0) slots_[node.id] = slots;
  }
}

double QuotaParts::ShareOf(NodeId id) const {
  return static_cast<double>(slots_.at(id)) / kSlotCount;
}

// Nothing is done while one has not what the last round gave it.
void QuotaParts::BeginRound(const NamespaceInfo& info, TimePoint now, Round* round) const {
  std::vector<HeldPart> held;
  uint64_t even_sum = 0, held_sum = 0;
  for (const auto& [id, member] : round->members) {
    if (!member.fresh || member.told_bytes != member.said.part_bytes) return;
    const uint64_t even = std::max<uint64_t>(1, EvenPart(info.dram_quota_bytes, ShareOf(id)));
    const uint64_t reserved = EvenPart(info.dram_reserved_bytes, ShareOf(id));
    even_sum += even;
    held_sum += member.said.part_bytes;
    held.push_back({.part_bytes = member.said.part_bytes,
                    .used_bytes = member.said.used_bytes,
                    .coldest_age = member.said.coldest_age,
                    .least_bytes = std::max({reserved, even / kEvenShare, uint64_t{1}}),
                    .most_bytes = std::min(even * kEvenShare, member.dram_bytes)});
  }
  const Duration since_last = round->begun_at ? now - *round->begun_at : Duration::zero();
  round->begun_at = now;
  const std::vector<uint64_t> next = NextParts(even_sum, since_last, held);
  auto part = next.begin();
  for (auto& [id, member] : round->members) {
    // Servers that were in an earlier view together may hold more than these have by this one.
    member.told_bytes = held_sum > even_sum
                            ? std::max<uint64_t>(1, EvenPart(info.dram_quota_bytes, ShareOf(id)))
                            : *part++;
    member.fresh = false;
  }
}

}  // namespace ems::controller
