# args: PID KEY. Kills all below the wrapper of that KEY until none is left; PID is its own, 0 when that is not known: then it goes too. What
# it leaves behind at first, a file, keeps a command that has not begun by then from ever doing so.
my ($root, $key) = @ARGV;
my $killed = "/run/sandgate/$key";
mkdir '/run/sandgate', 0700;
open my $f, '>', $killed or exit 1;
my $mark = "\0SANDGATE_EXEC=$key\0";
for my $round (1 .. 200) {
    my (%kids, @wrappers, %hit, @order);
    opendir my $d, '/proc' or exit 1;
    for my $p (grep { /^\d+$/ && $_ != $$ } readdir $d) {
        local $/;
        open my $st, '<', "/proc/$p/stat" or next;
        my $s = <$st>;
        defined $s && $s =~ /^\d+ \(.*\) (\S) (\d+)/s or next;
        push @{$kids{$2}}, $p unless $1 eq 'Z' || $1 eq 'X';
        next if $root && $p != $root;
        open my $e, '<', "/proc/$p/environ" or next;
        my $t = <$e>;
        push @wrappers, $p if defined $t && index("\0$t\0", $mark) >= 0;
    }
    my @next = map { @{$kids{$_} || []} } @wrappers;
    while (@next) {
        my $p = shift @next;
        next if $hit{$p}++;
        push @order, $p; # parents first: a shell must not see its child die, and say so as its own end
        push @next, @{$kids{$p} || []};
    }
    if (!@order) {
        kill 'KILL', @wrappers unless $root;
        unlink $killed if $root && !@wrappers; # one that is there does so itself
        exit 0;
    }
    kill 'KILL', @order;
    select undef, undef, undef, $round < 20 ? 0.005 : 0.05;
}
exit 1;
