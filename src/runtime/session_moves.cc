// Moving bytes between shards: copies to other devices and memories, reshards, bitcasts. A move is planned when it is
// asked for: which shard of the input each box of the output comes from, the nearest replica first. When its turn
// comes, hosts that have bytes which others need offer them (Export), and the hosts of the output pull and put together
// (Gather).
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "ifrt/strides.h"
#include "runtime/session_impl.h"
#include "runtime/wire.h"

namespace parkway::runtime {

struct SessionImpl::Move {
  struct Box {
    int source = 0;     // shard of the input
    ifrt::Region from;  // inside that shard
    ifrt::Region to;    // inside the output's shard
  };
  struct Target {
    int device = 0;
    ifrt::Shape shape;
    std::vector<Box> boxes;
  };
  std::vector<std::shared_ptr<Shard>> sources;  // of the input, in its order; kept until the move is done
  std::vector<ifrt::Shape> source_shapes;
  ArraySpec spec;
  std::vector<Target> targets;
  HostList source_hosts;  // that others pull from
  HostList target_hosts;
  bool reinterpret = false;
};

namespace {

void AddHost(HostList& hosts, int host) {
  if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
}

int64_t DenseBytes(ifrt::DType dtype, absl::Span<const int64_t> dims) {
  int64_t bytes = ifrt::ByteWidth(dtype);
  for (int64_t dim : dims) bytes *= dim;
  return bytes;
}

ifrt::Region Relative(const ifrt::Region& region, const ifrt::Region& inside) {
  ifrt::Region result = region;
  for (size_t d = 0; d < result.start.size(); ++d) result.start[d] -= inside.start[d];
  return result;
}

bool SameMemory(const ifrt::Sharding& a, const ifrt::Sharding& b) {
  return a.memory_kind().value_or("device") == b.memory_kind().value_or("device");
}

// The shard of that region nearest to a device: on it, on its host, or any that has no error.
int Nearest(const ArrayRecord& input, absl::Span<const int> replicas, int device, const Topology& topology) {
  int best = -1;
  int best_rank = 4;
  for (int shard : replicas) {
    int from = input.device_of(shard);
    int rank = from == device ? 0 : topology.device(from).host == topology.device(device).host ? 1 : 2;
    if (!input.buffers_of(shard).ShardError(from).ok()) rank = 3;
    if (rank < best_rank) {
      best = shard;
      best_rank = rank;
    }
  }
  return best;
}

}  // namespace

absl::Status SessionImpl::SubmitMove(const ArrayRecord& input, const ArraySpec& spec, const ArrayRecord& output,
                                     bool by_position, bool reinterpret, std::string what) {
  const Topology& topology = core_->options.topology;
  auto move = std::make_shared<Move>();
  move->spec = spec;
  move->reinterpret = reinterpret;
  std::vector<ifrt::Region> regions;
  absl::flat_hash_map<ifrt::Region, std::vector<int>> replicas;
  for (int i = 0; i < input.num_shards(); ++i) {
    PARKWAY_ASSIGN_OR_RETURN(ifrt::Shape shape, input.spec.sharding->ShardShape(input.spec.shape, i));
    move->source_shapes.push_back(std::move(shape));
    move->sources.push_back(input.ShardAt(i));
    if (by_position) continue;
    PARKWAY_ASSIGN_OR_RETURN(ifrt::Region region, input.spec.sharding->ShardRegion(input.spec.shape, i));
    replicas[region].push_back(i);
    regions.push_back(std::move(region));
  }
  for (int i = 0; i < spec.sharding->num_shards(); ++i) {
    int device = spec.sharding->devices()->id(i);
    PARKWAY_ASSIGN_OR_RETURN(ifrt::Shape shape, spec.sharding->ShardShape(spec.shape, i));
    Move::Target target{device, shape, {}};
    if (by_position) {
      target.boxes.push_back(Move::Box{i, ifrt::WholeRegion(move->source_shapes[i]), ifrt::WholeRegion(shape)});
    } else {
      PARKWAY_ASSIGN_OR_RETURN(ifrt::Region wanted, spec.sharding->ShardRegion(spec.shape, i));
      for (const auto& [region, shards] : replicas) {
        std::optional<ifrt::Region> common = ifrt::Intersect(wanted, region);
        if (!common.has_value()) continue;
        target.boxes.push_back(
            Move::Box{Nearest(input, shards, device, topology), Relative(*common, region), Relative(*common, wanted)});
      }
    }
    int host = topology.device(device).host;
    AddHost(move->target_hosts, host);
    for (const Move::Box& box : target.boxes) {
      int from = topology.device(input.device_of(box.source)).host;
      if (from != host || reinterpret) AddHost(move->source_hosts, from);
    }
    move->targets.push_back(std::move(target));
  }
  HostList hosts = move->target_hosts;
  for (int host : move->source_hosts) AddHost(hosts, host);
  std::sort(hosts.begin(), hosts.end());
  std::sort(move->target_hosts.begin(), move->target_hosts.end());
  BuffersRef buffers = output.whole->buffers();
  auto keep = output.whole;
  auto fail = [buffers](const absl::Status& why) {
    buffers->FailAll(why);
    buffers->Settle();
  };
  auto issue = [this, move, buffers, keep, what = std::move(what)](uint64_t, Issued issued) mutable {
    IssueMove(*move, buffers, what, std::move(issued));
    keep.reset();
    move.reset();
  };
  auto operation = std::make_shared<Operation>();
  operation->hosts = std::move(hosts);
  operation->issue = std::move(issue);
  operation->fail = std::move(fail);
  Submit(std::move(operation), 0);
  return absl::OkStatus();
}

Transfer SessionImpl::ExportBox(const Shard& shard, const ifrt::Region& box, int64_t bytes) {
  int host = core_->options.topology.device(shard.device()).host;
  Op op;
  op.set_session(id_);
  Export* offer = op.mutable_export_();
  offer->mutable_shard()->set_array(shard.buffers()->id());
  offer->mutable_shard()->set_device(shard.device());
  EncodeRegion(box, offer->mutable_region());
  offer->set_transfer(core_->options.random());
  Transfer transfer;
  transfer.set_id(offer->transfer());
  transfer.set_size(bytes);
  transfer.set_endpoint(core_->engines->hello(host).bulk_endpoint());
  transfer.set_machine(core_->engines->hello(host).machine());
  core_->engines->Tell({host}, std::move(op));
  return transfer;
}

void SessionImpl::IssueMove(Move& move, const BuffersRef& buffers, const std::string& what, Issued issued) {
  const Topology& topology = core_->options.topology;
  if (absl::Status room = CheckRoom(what, buffers); !room.ok()) {
    buffers->FailAll(room);
    buffers->Settle();
    return;
  }
  std::vector<Op> gathers(move.target_hosts.size());
  absl::flat_hash_map<int, Release> releases;
  for (const Move::Target& target : move.targets) {
    int host = topology.device(target.device).host;
    Op& op = gathers[std::find(move.target_hosts.begin(), move.target_hosts.end(), host) - move.target_hosts.begin()];
    Gather* gather = op.mutable_gather();
    gather->set_array(buffers->id());
    if (move.spec.sharding->memory_kind().has_value()) gather->set_memory_kind(*move.spec.sharding->memory_kind());
    absl::Status lost;
    for (const Move::Box& box : target.boxes) {
      const Shard& source = *move.sources[box.source];
      absl::Status error = source.buffers()->ShardError(source.device());
      if (lost.ok()) lost = error;
    }
    if (!lost.ok()) {
      buffers->Fail(target.device, lost);
      continue;
    }
    GatherShard* shard = gather->add_shards();
    shard->set_device(target.device);
    EncodeType(move.spec.dtype, target.shape.dims(), shard->mutable_type());
    for (const Move::Box& box : target.boxes) {
      const Shard& source = *move.sources[box.source];
      int source_host = topology.device(source.device()).host;
      Piece* piece = shard->add_pieces();
      EncodeRegion(box.to, piece->mutable_to());
      if (source_host == host && !move.reinterpret) {
        piece->mutable_local()->set_array(source.buffers()->id());
        piece->mutable_local()->set_device(source.device());
        EncodeType(move.spec.dtype, move.source_shapes[box.source].dims(), piece->mutable_source_type());
        EncodeRegion(box.from, piece->mutable_from());
        continue;
      }
      absl::Span<const int64_t> dims = move.reinterpret ? target.shape.dims() : box.from.size;
      EncodeType(move.spec.dtype, dims, piece->mutable_source_type());
      *piece->mutable_transfer() = ExportBox(source, box.from, DenseBytes(move.spec.dtype, dims));
      releases[source_host].add_transfers(piece->transfer().id());
    }
  }
  InFlight entry{.session = id_, .outputs = {buffers}, .what = what};
  entry.credit = std::move(issued.credit);
  std::vector<Op> ops;
  for (size_t i = 0; i < gathers.size(); ++i) {
    if (gathers[i].gather().shards().empty()) continue;
    entry.hosts.push_back(move.target_hosts[i]);
    ops.push_back(std::move(gathers[i]));
  }
  entry.sources = move.source_hosts;
  if (ops.empty()) {
    buffers->Settle();
    return;
  }
  entry.done = [engines = core_->engines.get(), releases = std::move(releases)](const absl::Status&) {
    for (const auto& [host, release] : releases) {
      Op op;
      *op.mutable_release() = release;
      engines->Tell({host}, std::move(op));
    }
  };
  core_->engines->IssueEach(std::move(ops), std::move(entry));
}

absl::Status SessionImpl::Copy(absl::Span<const Handle> arrays, absl::Span<const Handle> results,
                               ifrt::DeviceListPtr devices, std::optional<std::string> memory_kind,
                               CopySemantics semantics) {
  if (arrays.size() != results.size()) {
    return FailResults(
        results, {},
        absl::InvalidArgumentError(absl::StrCat("copying ", arrays.size(), " arrays to ", results.size(), " results")));
  }
  absl::Status first;
  for (size_t i = 0; i < arrays.size(); ++i) {
    absl::Status status = CopyOne(arrays[i], results[i], devices, memory_kind);
    if (status.ok()) {
      FinishInput(arrays[i], semantics);
    } else if (first.ok()) {
      first = status;
    }
  }
  return first;
}

absl::Status SessionImpl::CopyOne(Handle array, Handle result, const ifrt::DeviceListPtr& devices,
                                  const std::optional<std::string>& memory_kind) {
  PARKWAY_RETURN_IF_ERROR(CheckNewHandle(result));
  absl::StatusOr<ArrayRecord*> found = Find(array, "copying an array");
  if (!found.ok()) return FailResults({result}, {}, found.status());
  ArrayRecord input = **found;
  const ifrt::ShardingPtr& from = input.spec.sharding;
  absl::StatusOr<ifrt::ShardingPtr> sharding = from->With(devices != nullptr ? devices : from->devices(),
                                                          memory_kind.has_value() ? memory_kind : from->memory_kind());
  if (!sharding.ok()) {
    return FailResults({result}, {input.spec}, Annotate(sharding.status(), "copying " + DescribeSpec(input.spec)));
  }
  ArraySpec spec{input.spec.dtype, input.spec.shape, *sharding};
  if (input.spec.dtype == ifrt::DType::kString) return CopyStrings(input, result, spec);
  if ((*sharding)->devices() == from->devices() && SameMemory(**sharding, *from)) {
    input.spec = spec;
    Put(result, std::move(input));  // the same bytes: arrays never change, and donation looks for others who hold them
    return absl::OkStatus();
  }
  absl::StatusOr<ArrayRecord> record = NewRecord(spec, "copy");
  if (!record.ok()) return FailResults({result}, {spec}, record.status());
  Put(result, *record);
  absl::Status status = SubmitMove(input, spec, *record, true, false, "copy of " + DescribeSpec(spec));
  if (!status.ok()) {
    arrays_.erase(result);
    return FailResults({result}, {spec}, status);
  }
  return absl::OkStatus();
}

absl::Status SessionImpl::CopyStrings(const ArrayRecord& input, Handle result, const ArraySpec& spec) {
  absl::StatusOr<ArrayRecord> record = NewRecord(spec, "copy");
  if (!record.ok()) return FailResults({result}, {spec}, record.status());
  BuffersRef to = record->whole->buffers();
  Put(result, *std::move(record));
  to->host_bytes.resize(input.num_shards());
  auto left = std::make_shared<int>(input.num_shards());
  for (int i = 0; i < input.num_shards(); ++i) {
    const BuffersRef& from = input.buffers_ref(i);
    from->WhenSettled([from, to, left, i, device = input.device_of(i)] {
      if (absl::Status error = from->ShardError(device); !error.ok()) {
        to->Fail(to->devices()->id(i), error);
      } else {
        to->host_bytes[i] = from->host_bytes[*from->devices()->Position(device)];
      }
      if (--*left == 0) to->Settle();
    });
  }
  return absl::OkStatus();
}

absl::Status SessionImpl::Reshard(absl::Span<const Handle> arrays, absl::Span<const Handle> results,
                                  std::vector<ArraySpec> specs, CopySemantics semantics) {
  return MoveAll(arrays, results, specs, semantics, "resharding",
                 [this](const ArrayRecord& input, const ArraySpec& spec) { return ReshardOne(input, spec); });
}

absl::StatusOr<ArrayRecord> SessionImpl::ReshardOne(const ArrayRecord& input, const ArraySpec& spec) {
  if (input.spec.dtype != spec.dtype || !(input.spec.shape == spec.shape)) {
    return absl::InvalidArgumentError(absl::StrCat("resharding ", DescribeSpec(input.spec), " to ", DescribeSpec(spec),
                                                   ": type and shape must stay"));
  }
  if (SameMemory(*input.spec.sharding, *spec.sharding) && input.spec.sharding->devices() == spec.sharding->devices() &&
      input.spec.sharding->Equivalent(*spec.sharding, spec.shape)) {
    ArrayRecord same = input;
    same.spec = spec;
    return same;
  }
  PARKWAY_ASSIGN_OR_RETURN(ArrayRecord output, NewRecord(spec, "reshard"));
  PARKWAY_RETURN_IF_ERROR(SubmitMove(input, spec, output, false, false, "reshard of " + DescribeSpec(spec)));
  return output;
}

absl::Status SessionImpl::Bitcast(absl::Span<const Handle> arrays, absl::Span<const Handle> results,
                                  std::vector<ArraySpec> specs, CopySemantics semantics) {
  return MoveAll(
      arrays, results, specs, semantics, "bitcasting",
      [this](const ArrayRecord& input, const ArraySpec& spec) -> absl::StatusOr<ArrayRecord> {
        auto mismatch = [&](absl::string_view what) {
          return absl::InvalidArgumentError(absl::StrCat("bitcasting ", DescribeSpec(input.spec), " to ",
                                                         DescribeSpec(spec), ": ", what, " must stay"));
        };
        if (input.spec.sharding->devices() != spec.sharding->devices()) return mismatch("the devices");
        for (int i = 0; i < spec.sharding->num_shards(); ++i) {
          PARKWAY_ASSIGN_OR_RETURN(ifrt::Shape from, input.spec.sharding->ShardShape(input.spec.shape, i));
          PARKWAY_ASSIGN_OR_RETURN(ifrt::Shape to, spec.sharding->ShardShape(spec.shape, i));
          PARKWAY_ASSIGN_OR_RETURN(int64_t from_bytes, from.ByteSize(input.spec.dtype));
          PARKWAY_ASSIGN_OR_RETURN(int64_t to_bytes, to.ByteSize(spec.dtype));
          if (from_bytes != to_bytes) return mismatch("the size of each shard in bytes");
        }
        PARKWAY_ASSIGN_OR_RETURN(ArrayRecord output, NewRecord(spec, "bitcast"));
        PARKWAY_RETURN_IF_ERROR(SubmitMove(input, spec, output, true, true, "bitcast to " + DescribeSpec(spec)));
        return output;
      });
}

absl::Status SessionImpl::MoveAll(
    absl::Span<const Handle> arrays, absl::Span<const Handle> results, absl::Span<const ArraySpec> specs,
    CopySemantics semantics, absl::string_view what,
    absl::FunctionRef<absl::StatusOr<ArrayRecord>(const ArrayRecord&, const ArraySpec&)> one) {
  if (arrays.size() != results.size() || arrays.size() != specs.size()) {
    return FailResults(results, specs,
                       absl::InvalidArgumentError(absl::StrCat(what, " ", arrays.size(), " arrays: ", specs.size(),
                                                               " types and ", results.size(), " results were given")));
  }
  absl::Status first;
  for (size_t i = 0; i < arrays.size(); ++i) {
    absl::Status status = CheckNewHandle(results[i]);
    if (status.ok()) {
      absl::StatusOr<ArrayRecord*> found = Find(arrays[i], what);
      absl::StatusOr<ArrayRecord> output = found.ok() ? one(ArrayRecord(**found), specs[i]) : found.status();
      if (output.ok()) {
        Put(results[i], *std::move(output));
        FinishInput(arrays[i], semantics);
        continue;
      }
      status = FailResults({results[i]}, {specs[i]}, output.status());
    }
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace parkway::runtime
