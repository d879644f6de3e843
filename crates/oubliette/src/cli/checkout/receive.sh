# Makes a commit of the files of the current directory, a workspace, as they are now, or takes the one that
# is kept. Reads lines with commits that the receiver has. Prints `work COMMIT`, an empty line and a pack.
# Arguments: the snapshot that was sent, the name of what may be kept, a message.
sent=$1 kept=$2 message=$3
export LC_ALL=C
fail() { echo "$*" >&2; exit 1; }
command -v git > /dev/null || fail "git is not installed in the container"
unset GIT_INDEX_FILE
# The author of commits that are made here, where git does not know one.
git config user.name > /dev/null || export GIT_AUTHOR_NAME=Oubliette GIT_COMMITTER_NAME=Oubliette
git config user.email > /dev/null ||
    export GIT_AUTHOR_EMAIL=noreply@oubliette.invalid GIT_COMMITTER_EMAIL=noreply@oubliette.invalid
[ -e .git ] || fail "the workspace is not a git repository any more"
dir=$(git rev-parse --absolute-git-dir) || exit 1
ours=$dir/oubliette
mkdir -p "$ours" || exit 1
index=$ours/work-index.$$
trap 'rm -f "$index" "$index.lock" "$ours/has.$$"' EXIT
work=$(git rev-parse -q --verify "refs/oubliette/kept/$kept^{commit}")
if [ -z "$work" ]; then
    if [ -f "$ours/sent-index" ]; then
        cp -p "$ours/sent-index" "$index"
    elif [ -n "$sent" ]; then
        GIT_INDEX_FILE=$index git read-tree "$sent"
    else
        cp -p "$dir/index" "$index" 2> /dev/null
    fi
    GIT_INDEX_FILE=$index git -c core.safecrlf=false -c advice.addEmbeddedRepo=false \
        add -A --ignore-errors -- :/ > /dev/null
    [ $? -le 1 ] || exit 1
    tree=$(GIT_INDEX_FILE=$index git write-tree) || exit 1
    head=$(git rev-parse -q --verify 'HEAD^{commit}')
    if [ -n "$head" ] && [ "$(git rev-parse "$head^{tree}")" = "$tree" ]; then
        work=$head
    else
        work=$(git commit-tree "$tree" ${head:+-p "$head"} -m "$message") || exit 1
    fi
    git update-ref refs/oubliette/work "$work" || exit 1
fi
echo "work $work"
echo
git cat-file --batch-check='%(objecttype) %(objectname)' | sed -n 's/^commit /^/p' > "$ours/has.$$"
printf '%s\n' "$work" $sent | cat - "$ours/has.$$" |
    git pack-objects --revs --no-use-bitmap-index --stdout -q --delta-base-offset
